"""Which kept states may be freed, and in which order, computed from the mirror.

Only the learned rates of return are taken from the scheduler: their formula has its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from event_mirror import Mirror
from seen import SeenFreed, SeenRun, SeenSession, SeenState

from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.request import Request
from kvreg_service.core.states.cost import CostModel

COST = CostModel(slot_bytes=1000, page_bytes=640)

OPEN, RECENT_FRONTIER, RECENT_BOUNDARY, RUNNING = range(4)

Rank = tuple[int, int, float, float, int]
RateOf = Callable[..., float]


@dataclass(frozen=True)
class Profile:
    """The settings of the scheduler."""

    lanes: int
    entries: int
    anchors: int
    keep_current: bool
    policy: str
    context_tokens: int

    @property
    def is_none(self) -> bool:
        return self.policy == "none"


class Ranking:
    """The eviction order at the present moment. ``rate`` is that of the scheduler."""

    def __init__(self, mirror: Mirror, profile: Profile, rate: RateOf) -> None:
        self._mirror = mirror
        self._profile = profile
        self.rate = rate

    # What may be freed.

    def is_protected(self, state: SeenState, now_s: float) -> bool:
        """Whether other tenants may not free it: it is needed, and pinned or within a quota."""
        session = state.session
        is_quoted = state.tenant in self._mirror.quotas and not session.is_lent
        return (is_quoted or session.is_pinned(now_s)) and state in session.essentials

    def may_free(self, state: SeenState, tenant: str, now_s: float) -> bool:
        if not self.is_protected(state, now_s):
            return True
        return state.tenant == tenant and not state.session.is_pinned(now_s)

    # What a state is worth.

    def saved_s(self, identity: Identity, tokens: Iterable[int], position: int) -> float:
        """Return the seconds of prefill beyond the nearest kept state before a position."""
        path = self._mirror.path_to(identity, list(tokens), position)
        return COST.prefill_seconds(position, path[0].position if path else 0)

    def value(self, state: SeenState, passed: Collection[SeenState] = ()) -> float:
        """Return what keeping it is worth, if the conversations of ``passed`` go on beyond them."""
        if self._profile.policy in ("lru", "none"):
            since = state.resting_since
            return 1 / (1 + (0 if since is None else self._mirror.num_admissions - since))
        rate = self.rate(state.visits, is_followed=state in passed)
        rate += sum(self.rate(one.visits) for one in self._watched(state))
        return self.saved_s(state.identity, state.tokens, state.position) * rate

    def _watched(self, state: SeenState) -> list[SeenFreed]:
        return [one for one in state.freed_beyond if one in self._mirror.freed]

    def level(self, session: SeenSession) -> int:
        return session.priority if self._profile.policy == "priority" else 0

    def _rank(
        self,
        state: SeenState,
        tiers: dict[SeenState, int],
        passed: Collection[SeenState] = (),
        num_pages: int = 1,
    ) -> Rank:
        return (
            tiers.get(state, OPEN),
            self.level(state.session),
            self.value(state, passed) / num_pages,
            self.saved_s(state.identity, state.tokens, state.position),
            state.state_id,
        )

    # Tiers.

    def _tiers(self, request: Request, session: SeenSession | None) -> dict[SeenState, int]:
        tiers: dict[SeenState, int] = {}
        for recent in self._recent(request, session):
            for state in recent.essentials:
                is_end = state.kind is StateKind.FRONTIER
                tiers[state] = RECENT_FRONTIER if is_end else RECENT_BOUNDARY
        for run in self._mirror.all_runs:
            if run.boundary is not None:
                tiers[run.boundary] = RUNNING
        return tiers

    def _recent(self, request: Request, session: SeenSession | None) -> list[SeenSession]:
        """Return the last answered sessions that the request may take states from only at last."""
        profile = self._profile
        answered = [
            one
            for one in self._mirror.sessions.values()
            if one.answered and one.states and not one.is_shared and one is not session
        ]
        answered.sort(key=lambda one: one.answered, reverse=True)
        longer = [one for one in answered if one.prompt_tokens > request.prompt_tokens]
        new = [one for one in longer if one.is_newcomer]
        limit = min(2, profile.entries)
        if session is not None and not session.is_newcomer:
            return new[:limit]
        if profile.entries >= 2 and answered and answered[0].is_newcomer:
            longer = [answered[0]] + [one for one in longer if one is not answered[0]]
        kept = longer[:limit]
        # The last known session counts beside them where its boundary has a slot of its own.
        slots_per_entry = 2 if profile.keep_current else 1
        if profile.entries > limit or profile.anchors >= slots_per_entry:
            known = [one for one in longer if not one.is_newcomer]
            kept += [one for one in known[:1] if one not in kept]
        return kept

    # The first to be freed.

    def first_for_slot(
        self,
        request: Request,
        session: SeenSession | None,
        now_s: float,
        *,
        up_to: int = RUNNING,
        but: Collection[SeenState] = (),
        passed: Collection[SeenState] = (),
    ) -> SeenState | None:
        """Return the state whose slot a request takes; it may take those it goes on beyond."""
        tiers = self._tiers(request, session)
        tiers = {one: tier for one, tier in tiers.items() if one not in passed}
        allowed = [
            one
            for one in self._mirror.states
            if one not in but
            and tiers.get(one, OPEN) <= up_to
            and self.may_free(one, request.tenant, now_s)
        ]
        return min(allowed, key=lambda one: self._rank(one, tiers, passed), default=None)

    def first_on_path(
        self, path: Collection[SeenState], tenant: str, now_s: float
    ) -> SeenState | None:
        """Return the old state of a conversation which the next one of it replaces."""
        replaced = [
            one
            for one in path
            if one.kind not in (StateKind.HEAD, StateKind.BRANCH_POINT)
            and self.may_free(one, tenant, now_s)
        ]
        return min(replaced, key=lambda one: self._rank(one, {}, path), default=None)

    def page_victims(self, run: SeenRun, count: int, now_s: float) -> Iterator[SeenState]:
        """Yield what must be freed until a run can take pages, as the mirror stands then."""
        while len(self._mirror.free_pages) < count:
            tenant = run.request.tenant
            allowed = [one for one in self._mirror.states if self.may_free(one, tenant, now_s)]
            victim = self.first_for_pages(allowed, run)
            if victim is None:
                return
            yield victim

    def first_for_pages(
        self, allowed: Iterable[SeenState], run: SeenRun | None = None
    ) -> SeenState | None:
        """Return the state of the least value per page that comes free; some frees none at all."""
        tiers = self._tiers(run.request, run.session) if run else {}
        num_own = {one: self._mirror.own_pages(one) for one in allowed}
        freeing = [one for one, count in num_own.items() if count] or list(num_own)
        is_per_page = self._profile.policy in ("cost", "priority")

        def rank(state: SeenState) -> Rank:
            return self._rank(state, tiers, (), (num_own[state] or 1) if is_per_page else 1)

        return min(freeing, key=rank, default=None)
