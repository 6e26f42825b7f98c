"""A sequence as the mirror records it: plain values, and page numbers of the mirror's own."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.requests.request import Request


@dataclass
class Seen:
    """A running or kept sequence, or an anchor. An equal number means a shared page."""

    sequence_id: int
    tenant: str
    tokens: list[int]
    frontier: int
    has_current: bool
    checkpoint: int | None
    checkpoint_kind: str | None
    num_hits: int
    created_s: float
    last_used_s: float
    lane: int | None
    entry: int | None
    request: Request | None
    superseded_by: int | None
    family: int | None
    anchor: int | None = None
    is_marked: bool = False
    priority: int = 0
    expires_s: float | None = None
    pinned_until_s: float | None = None
    is_lent: bool = False
    anchored_by: int | None = None
    anchored_tokens: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def positions(self) -> dict[str, int]:
        """The positions from which it can be resumed, by kind."""
        found = {"append": self.frontier} if self.has_current else {}
        if self.checkpoint is not None:
            found[f"restore_{self.checkpoint_kind}"] = self.checkpoint
        return {kind: position for kind, position in found.items() if position > 0}

    @property
    def reusable(self) -> int:
        return max(self.positions.values(), default=0)

    def is_pinned(self, now_s: float) -> bool:
        return self.pinned_until_s is not None and now_s < self.pinned_until_s

    def cut_pages(self, position: int) -> None:
        """Drop the pages after ``position``."""
        del self.pages[(position + 63) // 64 :]
