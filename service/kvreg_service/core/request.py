"""One request as the scheduler sees it, and how it was admitted: tokens and limits, no text."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.ids import LaneId, RequestId, SequenceId
from kvreg_service.core.labels import Attach, CheckpointKind, ReusePath
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class CachePolicy:
    """How one request may use the cache, as its client set it.

    Without ``retain`` nothing of the request is kept when it ends. Without ``may_reuse`` the whole
    prompt is computed, whatever is kept. ``priority`` and ``ttl_s`` go to the sequence that is
    kept: the ``priority`` eviction policy evicts lower numbers first, and after ``ttl_s`` seconds
    at rest the sequence expires; None means no limit.
    """

    retain: bool = True
    may_reuse: bool = True
    priority: int = 0
    ttl_s: float | None = None


@dataclass(frozen=True)
class Head:
    """The first ``num_tokens`` tokens of a prompt, which other conversations may share.

    ``is_marked`` says that the client marked the end of it.
    """

    num_tokens: int
    is_marked: bool = False


@dataclass(frozen=True)
class Request:
    """Immutable from arrival to its terminal event.

    ``boundary`` is the token position at which the checkpoint is captured, or None. ``heads`` may
    become anchors, the shortest first.
    """

    request_id: RequestId
    prompt: TokenLedger
    max_tokens: int
    arrival_s: float
    stop_token_ids: frozenset[int] = frozenset()
    boundary: int | None = None
    boundary_kind: CheckpointKind = CheckpointKind.TURN
    cache_policy: CachePolicy = field(default_factory=CachePolicy)
    heads: tuple[Head, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt)

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.prompt.identity.tenant


@dataclass(frozen=True)
class Admission:
    """How a request got its lane, and what it reuses there.

    ``diverged_at`` is set on a full reset: the longest prefix, in tokens, that any kept sequence
    shares with the prompt; None when nothing was kept. ``regret_tokens`` are computed again only
    because the current state of the reused sequence was dropped. ``gap_s`` is how long the reused
    sequence was at rest; None when nothing was reused.
    """

    lane: LaneId
    sequence_id: SequenceId
    prompt_tokens: int
    cached_tokens: int
    reuse_path: ReusePath
    attach: Attach
    queue_s: float
    gap_s: float | None = None
    diverged_at: int | None = None
    regret_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that are computed: those that are not cached."""
        return self.prompt_tokens - self.cached_tokens
