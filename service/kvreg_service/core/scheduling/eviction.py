"""Chooses the states that are freed, and frees them for running requests.

A policy gives the values. Pins, quotas and the protection of the sessions that were answered last
are the same for every policy.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kvreg_service.core.ids import PageId, pages_for
from kvreg_service.core.labels import EvictionReason, StateKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.lane import Lane, Run
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.policies import EvictionPolicy, Prospect
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.states.return_rates import Visits
from kvreg_service.core.states.store import StateStore

MAX_PROTECTED_SESSIONS = 2
"""How many of the last answered sessions a smaller request may not take a state from."""


class Tier(IntEnum):
    """States of a lower tier are freed before any of a higher one."""

    OPEN = 0
    RECENT_FRONTIER = 1
    """The frontier of a session that was answered just before, and is longer than the request."""
    RECENT_BOUNDARY = 2
    """The boundary of such a session."""
    RUNNING = 3
    """The boundary of a request that still runs."""


@dataclass(frozen=True, order=True)
class Rank:
    """Sort key of eviction: the tier, the policy's level and value, then the age."""

    tier: Tier
    level: int
    value: float
    saved_s: float
    state_id: int


class Eviction:
    """Frees states of one `StateStore`."""

    def __init__(self, store: StateStore, lanes: Sequence[Lane], policy: EvictionPolicy) -> None:
        self._store = store
        self._lanes = lanes
        self.policy = policy
        self.quotas: Mapping[str, Quota] = {}

    # What may be freed, and in which order.

    def is_protected(self, state: KeptState, now_s: float) -> bool:
        """Whether requests of other tenants may not free the state.

        A pin or a quota protects what a session needs to go on, not every state of it.
        """
        session = state.session
        is_quoted = session.tenant in self.quotas and not session.is_lent
        if not is_quoted and not session.is_pinned(now_s):
            return False
        return state in session.essentials

    def may_free(self, state: KeptState, tenant: str, now_s: float) -> bool:
        """Whether the state may be freed for a request of ``tenant``."""
        if not self.is_protected(state, now_s):
            return True
        return state.tenant == tenant and not state.session.is_pinned(now_s)

    def prospect(
        self, session: Session, visits: Visits, ledger: TokenLedger, position: int
    ) -> Prospect:
        """Return what a policy needs to value a state that is not kept yet."""
        saved_s = self._store.saved_seconds(ledger, position)
        return Prospect(session, visits, saved_s, self._store.rates.rate(visits), rest=0)

    def value(self, state: KeptState) -> float:
        """Return the policy's value of a kept state."""
        return self.policy.value(self.prospect_of(state))

    def prospect_of(self, state: KeptState, passed: Container[KeptState] = ()) -> Prospect:
        """Return what a policy needs to value a kept state.

        ``passed`` are states that are valued as in `choose_for_slot`.
        """
        store, visits, before = self._store, state.visits, state.parent
        since = visits.resting_since
        return Prospect(
            session=state.session,
            visits=visits,
            saved_s=store.cost.prefill_seconds(state.position, before.position if before else 0),
            return_rate=store.rates.rate(visits, is_followed=state in passed)
            + sum(store.rates.rate(one) for one in state.freed_beyond if one.is_watched),
            rest=0 if since is None else store.rates.num_admissions - since,
        )

    def _rank(
        self,
        state: KeptState,
        tiers: Mapping[int, Tier],
        num_pages: int = 1,
        passed: Container[KeptState] = (),
    ) -> Rank:
        prospect = self.prospect_of(state, passed)
        return Rank(
            tiers.get(state.state_id, Tier.OPEN),
            self.policy.level(prospect),
            self.policy.value(prospect) / num_pages,
            prospect.saved_s,
            state.state_id,
        )

    def _tiers(self, request: Request, session: Session | None) -> dict[int, Tier]:
        """Return the tiers of all states that are not open to a request of a session."""
        tiers: dict[int, Tier] = {}
        for recent in self._protected_sessions(request, session):
            for state in recent.essentials:
                is_end = state.kind is StateKind.FRONTIER
                tiers[state.state_id] = Tier.RECENT_FRONTIER if is_end else Tier.RECENT_BOUNDARY
        for lane in self._lanes:
            if lane.run is not None and lane.run.boundary is not None:
                tiers[lane.run.boundary.state_id] = Tier.RUNNING
        return tiers

    def _protected_sessions(self, request: Request, session: Session | None) -> list[Session]:
        """Return the sessions that a request may not take states from, while others have any.

        These are the sessions that were answered last and are longer than the request: newcomers in
        any case, known ones if the request begins a session, such as a title request does. The very
        last one, if it is a newcomer, is also kept from a longer newcomer where two entries are.
        Their number is such that the request's own states fit beside theirs.
        """
        layout = self._store.layout
        recent = [
            one
            for one in sorted(self._store.sessions, key=lambda each: -each.answered)
            if one.answered and one.states and one is not session and not one.is_shared
        ]
        begins = session is None or session.is_newcomer
        longer = [one for one in recent if one.prompt_tokens > request.prompt_tokens]
        if begins and layout.entries > 1 and recent and recent[0].is_newcomer:
            longer = list(dict.fromkeys([recent[0], *longer]))
        limit = min(MAX_PROTECTED_SESSIONS, layout.entries)
        if not begins:
            return [one for one in longer if one.is_newcomer][:limit]
        if layout.entries > limit or layout.anchors >= layout.slots_per_entry:
            known = [one for one in longer if not one.is_newcomer][:1]
            return list(dict.fromkeys([*longer[:limit], *known]))
        return longer[:limit]

    # For slots.

    def choose_for_slot(
        self,
        request: Request,
        session: Session | None,
        now_s: float,
        *,
        up_to: Tier = Tier.RUNNING,
        but: Iterable[KeptState] = (),
        passed: Collection[KeptState] = (),
    ) -> KeptState | None:
        """Return the state whose slot a request may take, up to a tier; None if there is none.

        Args:
            request: the request that needs a slot.
            session: the session that it continues, whose states are open to it.
            now_s: the current time.
            up_to: the highest tier that may be freed.
            but: states that are freed already.
            passed: states that the conversation goes on beyond, once the slot is taken. They are
                valued as such, so that a conversation rather gives up its own old state.
        """
        tiers = self._tiers(request, session)
        for state in passed:
            tiers.pop(state.state_id, None)
        gone = {state.state_id for state in but}
        candidates = [
            one
            for one in self._store
            if one.state_id not in gone
            and tiers.get(one.state_id, Tier.OPEN) <= up_to
            and self.may_free(one, request.tenant, now_s)
        ]
        return min(candidates, key=lambda one: self._rank(one, tiers, passed=passed), default=None)

    def make_room_for(
        self,
        run: Run,
        prospect: Prospect,
        now_s: float,
        *,
        must_capture: bool,
        passed: Collection[KeptState],
    ) -> bool:
        """Free a slot for a state that a run could capture, if that is worth it.

        With ``must_capture`` the least valuable open state gives way whatever its value. If all are
        worth more, a conversation still gives up a state of its own before that one.
        """
        if self._store.slots.num_free:
            return True
        if self.policy.keeps_only_r_sessions and not must_capture:
            return False
        victim = self.choose_for_slot(
            run.request, run.session, now_s, up_to=Tier.OPEN, passed=passed
        )
        if victim is not None and not must_capture:
            rival = self.prospect_of(victim, passed)
            mine = (self.policy.level(prospect), self.policy.value(prospect))
            if mine <= (self.policy.level(rival), self.policy.value(rival)):
                victim = self._own_state_before(run, prospect.visits.prefix.position, now_s)
        if victim is None:
            return False
        self._store.free(victim, EvictionReason.SLOT_NEEDED)
        return True

    def _own_state_before(self, run: Run, position: int, now_s: float) -> KeptState | None:
        """Return the least valuable state of a conversation that a later one can stand in for."""
        path = self._store.path_to(run.ledger, position)
        own = [
            one
            for one in path
            if one.visits.can_be_followed and self.may_free(one, run.request.tenant, now_s)
        ]
        return min(own, key=lambda one: self._rank(one, {}, passed=path), default=None)

    # For pages.

    def take_pages(self, run: Run, end: int, now_s: float) -> None:
        """Give a run the pages for its first ``end`` tokens.

        Frees kept states, least valuable first, only for what the free pages do not cover.

        Raises:
            OutOfPages: running requests hold all pages, which promises rule out.
        """
        needed = pages_for(end) - len(run.pages)
        if needed > 0:
            after = run.pages[-1] if run.pages else None
            run.pages += self.allocate(run, needed, after, run.promised_pages, now_s)

    def allocate(
        self, run: Run, count: int, after: PageId | None, room: int | None, now_s: float
    ) -> list[PageId]:
        """Allocate pages for a run, and free kept states for what is missing.

        Raises:
            OutOfPages: as `take_pages`.
        """
        pages = self._store.pages
        while pages.num_free < count and self._free_for_pages(run, now_s):
            pass
        return pages.allocate(count, after=after, room=room)

    def _free_for_pages(self, run: Run, now_s: float) -> bool:
        tenant = run.request.tenant
        takeable = [one for one in self._store if self.may_free(one, tenant, now_s)]
        victim = self.first_to_free(takeable, run)
        if victim is None:
            return False
        self._store.free(victim, EvictionReason.PAGES_NEEDED)
        return True

    def first_to_free(
        self, candidates: Iterable[KeptState], run: Run | None = None
    ) -> KeptState | None:
        """Return the state of the least value per page that becomes free; None without any.

        A state without pages of its own would free nothing, and stays while there are others.
        """
        tiers = self._tiers(run.request, run.session) if run else {}
        num_pages = {one: self._store.pages.count_own(one.pages) for one in candidates}
        freeing = [one for one in num_pages if num_pages[one]]
        is_per_page = self.policy.is_per_page
        return min(
            freeing or num_pages,
            key=lambda one: self._rank(one, tiers, (num_pages[one] or 1) if is_per_page else 1),
            default=None,
        )
