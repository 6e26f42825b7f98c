"""A sequence: its token ledger, the positions it can be resumed at, and the pages it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.errors import InvariantBroken
from kvreg_service.core.ids import PageId, SequenceId, pages_for
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.ledger import TokenLedger


@dataclass(frozen=True)
class Checkpoint:
    """A kept state at ``position``: the first ``position`` tokens are in it."""

    position: int
    kind: CheckpointKind


@dataclass
class Sequence:
    """A conversation as far as it was computed. Owned by exactly one lane or entry.

    While it runs, the ledger may hold a sampled token beyond the frontier. At rest the ledger ends
    at the frontier. Without a current state the frontier is only how far it was once computed, and
    the pages reach to the checkpoint.
    """

    sequence_id: SequenceId
    ledger: TokenLedger
    created_s: float
    last_used_s: float
    frontier: int = 0
    has_current: bool = True
    checkpoint: Checkpoint | None = None
    pages: list[PageId] = field(default_factory=list)
    """The page table: page i holds tokens [64 i, 64 i + 64)."""
    num_hits: int = 0
    priority: int = 0
    expires_s: float | None = None
    """When its time to live ends, once it is at rest."""
    pinned_until_s: float | None = None
    is_lent: bool = False
    """Other tenants may evict it although its tenant has a quota: it backs a promise to it."""
    superseded_by: SequenceId | None = None
    """The sequence that continued from this fork's position."""
    anchored_by: SequenceId | None = None
    """The anchor that keeps the sequence's first ``anchored_tokens`` tokens as well."""
    anchored_tokens: int = 0
    family: SequenceId | None = None
    """The first sequence of the line of forks and their originals."""

    @property
    def reusable_tokens(self) -> int:
        """The longest position at which the sequence can be resumed; 0 when there is none."""
        at_checkpoint = self.checkpoint.position if self.checkpoint else 0
        return max(self.frontier if self.has_current else 0, at_checkpoint)

    @property
    def tenant(self) -> str:
        """The tenant of the sequence."""
        return self.ledger.identity.tenant

    def is_pinned(self, now_s: float) -> bool:
        """Whether it is protected from eviction at ``now_s``."""
        return self.pinned_until_s is not None and now_s < self.pinned_until_s

    def forget_anchor_beyond(self, position: int) -> None:
        """Drop the anchor if the sequence went back to before the anchor's end."""
        if position < self.anchored_tokens:
            self.anchored_by, self.anchored_tokens = None, 0

    @property
    def num_states(self) -> int:
        """The number of its state slots: for the frontier, the checkpoint, both or none."""
        return int(self.has_current) + int(self.checkpoint is not None)

    def check_invariants(self) -> None:
        """Raise InvariantBroken when positions, ledger and pages contradict each other."""
        if self.checkpoint and self.checkpoint.position > self.frontier:
            raise InvariantBroken(
                f"sequence {self.sequence_id}: checkpoint {self.checkpoint.position} lies beyond "
                f"the frontier {self.frontier}"
            )
        if self.frontier > len(self.ledger):
            raise InvariantBroken(
                f"sequence {self.sequence_id}: frontier {self.frontier} lies beyond the ledger's "
                f"{len(self.ledger)} tokens"
            )
        if len(self.pages) < pages_for(self.reusable_tokens):
            raise InvariantBroken(
                f"sequence {self.sequence_id}: {len(self.pages)} pages cannot hold "
                f"{self.reusable_tokens} tokens"
            )
