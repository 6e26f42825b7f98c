"""One request as the scheduler sees it, and how it was admitted: tokens and limits, no text."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.ids import LaneId, RequestId, SessionId
from kvreg_service.core.labels import Attach, ReusePath, StateKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class CachePolicy:
    """How one request may use the cache, as its client set it.

    Without ``retain`` nothing of the request is kept when it ends. Without ``may_reuse`` the whole
    prompt is computed, whatever is kept. ``priority`` and ``ttl_s`` go to the session: the
    ``priority`` eviction policy frees lower numbers first, and after ``ttl_s`` seconds at rest all
    states of the session expire; None means no limit.
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
class ResumePoint:
    """A position of a prompt, in tokens, at which a later prompt is expected to resume.

    ``is_marked`` says that the client marked it.
    """

    position: int
    kind: StateKind
    is_marked: bool = False


@dataclass(frozen=True)
class Request:
    """Immutable from arrival to its terminal event.

    ``resume_points`` may be in any order. Those inside of the prompt are captured when prefill
    passes them, as far as they are worth a slot.
    """

    request_id: RequestId
    prompt: TokenLedger
    max_tokens: int
    arrival_s: float
    stop_token_ids: frozenset[int] = frozenset()
    resume_points: tuple[ResumePoint, ...] = ()
    cache_policy: CachePolicy = field(default_factory=CachePolicy)
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt)

    @property
    def boundaries(self) -> frozenset[int]:
        """The positions that the next request of the conversation is expected to resume.

        In a tool loop that of the turn is one of them in every round.
        """
        return frozenset(one.position for one in self.resume_points if one.kind.is_boundary)

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.prompt.identity.tenant


@dataclass(frozen=True)
class Admission:
    """How a request got its lane, and what it reuses there.

    ``diverged_at`` is set on a full reset: the longest prefix, in tokens, that any kept path shares
    with the prompt; None when nothing was kept. ``regret_tokens`` are computed again only because a
    frontier state was dropped with its session's lane. ``gap_s`` is how long the resumed state was
    at rest; None when nothing was reused.
    """

    lane: LaneId
    session_id: SessionId
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
