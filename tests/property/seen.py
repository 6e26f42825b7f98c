"""Kept states, sessions and running requests as the mirror records them: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.ids import pages_for
from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.request import Request, ResumePoint
from kvreg_service.core.states.return_rates import Visits


@dataclass(eq=False)
class SeenSession:
    """``session_id`` is None until its first request is admitted."""

    session_id: int | None
    tenant: str
    is_shared: bool = False
    is_newcomer: bool = False
    boundaries: frozenset[int] = frozenset()
    prompt_tokens: int = 0
    num_resumes: int = 0
    num_running: int = 0
    answered: int = 0
    priority: int = 0
    last_used_s: float = 0.0
    expires_s: float | None = None
    pinned_until_s: float | None = None
    is_lent: bool = False
    states: list[SeenState] = field(default_factory=list)

    def is_pinned(self, now_s: float) -> bool:
        return self.pinned_until_s is not None and now_s < self.pinned_until_s

    @property
    def frontier(self) -> SeenState | None:
        """The end of its last answer."""
        ends = [one for one in self.states if one.kind is StateKind.FRONTIER]
        return ends[-1] if ends else None

    @property
    def boundary(self) -> SeenState | None:
        """The boundary of the turn while the frontier serves the tool loop, else the deepest."""
        others = [one for one in self.states if one.kind is not StateKind.FRONTIER]
        expected = [one for one in others if one.position in self.boundaries]
        if expected and self.frontier is not None:
            return min(expected, key=lambda one: one.position)
        return max(expected or others, key=lambda one: one.position, default=None)

    @property
    def essentials(self) -> list[SeenState]:
        """What pins and quotas protect."""
        return [one for one in (self.boundary, self.frontier) if one is not None]

    @property
    def pages(self) -> set[int]:
        """The pages of what pins and quotas protect."""
        return {page for one in self.essentials for page in one.pages}


@dataclass(eq=False)
class SeenState:
    """A kept state. ``path`` are the tokens of the request that left it, which may still grow.

    ``visits`` are only used to ask the scheduler for the learned rate of returns.
    """

    state_id: int
    session: SeenSession
    identity: Identity
    tokens: tuple[int, ...]
    path: list[int]
    kind: StateKind
    slot: int
    pages: tuple[int, ...]
    visits: Visits
    last_used_s: float
    resting_since: int | None = None
    is_marked: bool = False
    freed_beyond: list[SeenFreed] = field(default_factory=list)

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def tenant(self) -> str:
        return self.identity.tenant

    def is_before(self, identity: Identity, tokens: list[int], position: int) -> bool:
        """Whether it is a proper prefix of the first ``position`` tokens."""
        is_shorter = identity == self.identity and self.position < position
        return is_shorter and tuple(tokens[: self.position]) == self.tokens


@dataclass(eq=False)
class SeenFreed:
    """A state that was freed and may still be missed."""

    identity: Identity
    tokens: tuple[int, ...]
    kind: StateKind
    visits: Visits
    is_dropped_current: bool

    @property
    def position(self) -> int:
        return len(self.tokens)


@dataclass(eq=False)
class SeenRun:
    """A running request. ``tokens[:position]`` are computed; ``points`` may still be captured.

    ``taken_over`` is the page table of the resumed state while the request takes its slot over.
    """

    request: Request
    session: SeenSession
    lane: int
    resumed: SeenState | None
    missed: SeenFreed | None
    known: int | None
    """The longest prefix that a known path shared with its prompt."""
    tokens: list[int]
    position: int
    points: list[ResumePoint]
    is_taken_over: bool = False
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    taken_over: tuple[int, ...] = ()
    boundary: SeenState | None = None
    capturing: ResumePoint | None = None
    capture_slot: int | None = None
    used: list[SeenState] = field(default_factory=list)
    num_output_tokens: int = 0

    @property
    def identity(self) -> Identity:
        return self.request.prompt.identity

    @property
    def promised_pages(self) -> int:
        return pages_for(self.request.prompt_tokens + self.request.max_tokens)

    @property
    def slots(self) -> list[int]:
        return [one for one in (self.slot, self.capture_slot) if one is not None]
