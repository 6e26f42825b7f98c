"""Kept states, and the sessions that they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.ids import PageId, SessionId, SlotId, StateId
from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.states.return_rates import Visits


@dataclass(eq=False)
class Session:
    """A conversation, as far as people name, pin and limit it.

    A request continues the session of the state that it resumes. A shared session has one state, a
    head or a branch point, which no conversation owns: a request that resumes it begins a session.
    """

    session_id: SessionId
    tenant: str
    created_s: float
    last_used_s: float
    is_shared: bool = False
    is_newcomer: bool = False
    """Whether only its first turn was seen: nothing of it was resumed, or freed before."""
    pace: int = 0
    """How long it rested before its last turn; 0 for a newcomer. See `return_rates.pace_of`."""
    boundaries: frozenset[int] = frozenset()
    """Positions at which its next request is expected to resume; see `Request.boundaries`."""
    prompt_tokens: int = 0
    """Length of its last prompt."""
    num_resumes: int = 0
    num_running: int = 0
    """Requests that continue it now."""
    answered: int = 0
    """Grows with every request that ends; the session that was answered last has the largest."""
    priority: int = 0
    expires_s: float | None = None
    """When its time to live ends, once nothing of it runs."""
    pinned_until_s: float | None = None
    is_lent: bool = False
    """Other tenants may free its states although its tenant has a quota: it backs a promise."""
    states: list[KeptState] = field(default_factory=list)

    @property
    def boundary(self) -> KeptState | None:
        """The state before its last answer that its next turn needs.

        In a tool loop the frontier serves the next round, and the boundary of the turn the user's
        next message; without the frontier the boundary of the round comes first.
        """
        others = [one for one in self.states if one.kind is not StateKind.FRONTIER]
        last = [one for one in others if one.position in self.boundaries]
        if last and self.frontier is not None:
            return min(last, key=lambda one: one.position)
        return max(last or others, key=lambda one: one.position, default=None)

    @property
    def frontier(self) -> KeptState | None:
        """The end of its last answer, if that state is kept."""
        ends = [one for one in self.states if one.kind is StateKind.FRONTIER]
        return max(ends, key=lambda one: one.state_id, default=None)

    @property
    def essentials(self) -> list[KeptState]:
        """Its boundary and its frontier, as far as they are kept: what it needs to go on."""
        return [one for one in (self.boundary, self.frontier) if one is not None]

    def is_pinned(self, now_s: float) -> bool:
        """Whether it is protected from eviction at ``now_s``."""
        return self.pinned_until_s is not None and now_s < self.pinned_until_s


@dataclass(eq=False)
class KeptState:
    """The convolution and recurrent state after the first ``position`` tokens of ``ledger``.

    Immutable until it is freed. ``pages`` hold exactly those tokens; the last one may hold more,
    of whatever wrote on, and is copied when a request resumes here.
    """

    state_id: StateId
    session: Session
    kind: StateKind
    position: int
    ledger: TokenLedger
    slot: SlotId
    pages: tuple[PageId, ...]
    visits: Visits
    created_s: float
    last_used_s: float
    is_marked: bool = False
    parent: KeptState | None = None
    """The longest kept state that is a proper prefix of this one."""
    freed_beyond: list[Visits] = field(default_factory=list)
    """Freed states beyond it without a nearer kept one: who would resume those resumes here."""

    @property
    def tenant(self) -> str:
        """The tenant whose requests may resume it."""
        return self.session.tenant
