"""Applies admission plans: puts a request on its lane with the state that it resumes."""

from __future__ import annotations

from collections.abc import Sequence

from kvreg_service.core.events import Admitted, Attached, Detached
from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.labels import Attach, EvictionReason, StateKind
from kvreg_service.core.memory.pages import PageCopy
from kvreg_service.core.memory.slots import LaneOwner
from kvreg_service.core.requests.request import Admission, Request
from kvreg_service.core.scheduling.admission import AdmissionPlan, beside
from kvreg_service.core.scheduling.eviction import Eviction
from kvreg_service.core.scheduling.lane import Lane, Run
from kvreg_service.core.scheduling.reservations import Reservations
from kvreg_service.core.scheduling.step import SlotCopy, StateMove
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.return_rates import pace_of
from kvreg_service.core.states.store import StateStore


class LaneStarter:
    """Puts requests on lanes.

    Effects are immediate in the bookkeeping. The returned moves do the same on the device, and must
    be executed before anything else is computed. They write nothing but what the lane owns.
    """

    def __init__(
        self,
        store: StateStore,
        lanes: Sequence[Lane],
        eviction: Eviction,
        reservations: Reservations,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._eviction = eviction
        self._reservations = reservations

    def start(self, plan: AdmissionPlan, now_s: float) -> list[StateMove]:
        """Put the plan's request on its lane and return the state moves, at most one of a slot.

        Effects: if it raises, the request may be half on its lane, and the caller must repair.
        """
        request, resumed, lane = plan.request, plan.resumed, self._lanes[plan.lane]
        # A session whose states are all freed is on no lane any more.
        displaced = lane.session if lane.session and lane.session.states else None
        self._store.rates.count_admission()
        gap_s = max(0.0, now_s - resumed.last_used_s) if resumed else None
        continued = resumed.session if resumed and not resumed.session.is_shared else None
        session = continued or self._store.begin_session(request.tenant, now_s)
        session.num_running += 1
        session.is_newcomer = continued is None and not _is_known(plan)
        if not session.is_newcomer:
            rested = plan.missed or (resumed.visits if resumed else None)
            session.pace = pace_of(rested) if rested else 0
        is_taken_over = self._free(plan)
        slot = (
            resumed.slot
            if resumed is not None and is_taken_over
            else self._store.slots.take(LaneOwner(plan.lane))
        )
        run = lane.run = Run(
            request=request,
            session=session,
            slot=slot,
            ledger=request.prompt.copy(request.prompt_tokens),
            num_computed=plan.cached_tokens,
            promised_pages=self._reservations.pages_for_request(request),
            points=list(plan.points),
        )
        moves: list[StateMove] = []
        if resumed is not None:
            self._store.rates.resume(resumed.visits, is_deepest=plan.missed is None)
            run.visits.append(resumed.visits)
            for other in beside(resumed):
                other.visits.is_followed = True
            moves = self._resume(run, resumed, now_s, is_taken_over=is_taken_over)
        if plan.missed is not None:
            self._store.rates.resume_freed(plan.missed)
        self._note_use(session, request, now_s, is_resumed=continued is not None)
        self._note_marks(request)
        lane.session = session
        self._announce(plan, session, displaced, now_s, gap_s)
        self._reservations.settle(request.tenant, now_s)
        if displaced is not None and displaced.tenant != request.tenant:
            self._reservations.settle(displaced.tenant, now_s)
        return moves

    def _free(self, plan: AdmissionPlan) -> bool:
        """Free what the plan gives up; return whether the lane has the resumed state's slot."""
        for state, reason in plan.freed:
            if state is plan.resumed:
                self._store.take_over(state, plan.lane)
                return True
            if reason is EvictionReason.DISPLACED and state.kind is StateKind.FRONTIER:
                state.visits.is_dropped_current = not self._store.layout.keep_current
            self._store.free(state, reason)
        return False

    def _resume(
        self, run: Run, resumed: KeptState, now_s: float, *, is_taken_over: bool
    ) -> list[StateMove]:
        """Give a run the state and the pages that it resumes."""
        pages, moves = self._store.pages, list[StateMove]()
        num_whole = resumed.position // PAGE_TOKENS
        whole = list(resumed.pages[:num_whole])
        is_partial = len(resumed.pages) > num_whole
        if is_taken_over and not (is_partial and pages.is_shared(resumed.pages)):
            # The table that was the state's is the run's now.
            run.pages = list(resumed.pages)
            return moves
        pages.hold(whole)
        run.pages = whole
        if not is_taken_over:
            assert run.slot is not None, "a request that starts has a working slot"
            moves.append(SlotCopy(resumed.slot, run.slot))
            resumed.last_used_s = now_s
            if resumed.kind.is_boundary:
                run.boundary = resumed
        if is_partial:
            # Other tables may have other tokens beyond the position, or will write them.
            run.pages += self._eviction.allocate(run, 1, whole[-1] if whole else None, None, now_s)
            moves.append(PageCopy(resumed.pages[-1], run.pages[-1]))
        if is_taken_over:
            pages.release(resumed.pages)
        return moves

    def _note_use(
        self, session: Session, request: Request, now_s: float, *, is_resumed: bool
    ) -> None:
        session.last_used_s = now_s
        session.prompt_tokens = request.prompt_tokens
        session.boundaries = request.boundaries
        session.is_lent = False
        session.num_resumes += is_resumed
        if request.cache_policy.retain:
            session.priority = request.cache_policy.priority

    def _note_marks(self, request: Request) -> None:
        """Note the marks of a client on states that are kept already."""
        for point in request.resume_points:
            if point.is_marked and request.cache_policy.retain:
                kept = self._store.find_at(request.prompt, point.position)
                if kept is not None:
                    kept.is_marked = True

    def _announce(
        self,
        plan: AdmissionPlan,
        session: Session,
        displaced: Session | None,
        now_s: float,
        gap_s: float | None,
    ) -> None:
        events, request_id = self._store.events, plan.request.request_id
        if displaced is not None and displaced is not session:
            held = self._store.cost.held_bytes(
                len(displaced.states),
                self._store.pages.count_own(*(state.pages for state in displaced.states)),
            )
            events.append(Detached(displaced.session_id, plan.lane, len(displaced.states), held))
        admission = Admission(
            lane=plan.lane,
            session_id=session.session_id,
            prompt_tokens=plan.request.prompt_tokens,
            cached_tokens=plan.cached_tokens,
            reuse_path=plan.reuse_path,
            attach=plan.attach,
            # The clock was read before the request arrived, if it arrived a moment ago.
            queue_s=max(0.0, now_s - plan.request.arrival_s),
            gap_s=gap_s,
            diverged_at=plan.diverged_at,
            regret_tokens=plan.regret_tokens,
        )
        events.append(Admitted(request_id, admission))
        if plan.resumed is not None and plan.attach is not Attach.NONE:
            events.append(
                Attached(request_id, plan.resumed.session.session_id, plan.lane, plan.reuse_path)
            )


def _is_known(plan: AdmissionPlan) -> bool:
    """Whether the prompt goes on from a conversation whose states were freed."""
    return plan.missed is not None and plan.missed.can_be_followed
