"""A mirror of the scheduler's state, rebuilt from requests, step plans and events alone.

Owns a plain list of kept states, with their tokens, and one of running requests. Events are applied
in the moment in which they occur. If it differs from the scheduler's state, either the scheduler's
bookkeeping or its events are wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from seen import SeenFreed, SeenRun, SeenSession, SeenState

from kvreg_service.core import events
from kvreg_service.core.ids import PAGE_TOKENS, pages_for
from kvreg_service.core.labels import EvictionReason, StateKind
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import SlotCopy, StepPlan, StepResult
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.states.return_rates import Visits

MAX_FREED = 400
"""How many freed states are watched."""
MAX_FREED_BEYOND = 8
"""How many freed states a kept one before them inherits the expected returns of."""


class Mirror:
    """All kept states, sessions, running and queued requests, updated by events."""

    def __init__(self, num_lanes: int, num_slots: int, num_pages: int, keep_current: bool) -> None:
        self.num_slots = num_slots
        self.num_pages = num_pages
        self._keep_current = keep_current
        self.states: list[SeenState] = []
        self.sessions: dict[int, SeenSession] = {}
        self.runs: list[SeenRun] = []
        self.starting: SeenRun | None = None
        """The request that is being put on a lane, before its event."""
        self.ending: SeenRun | None = None
        """The request that will end next, before its event."""
        self.freed: list[SeenFreed] = []
        self.lanes: list[SeenSession | None] = [None] * num_lanes
        self.quotas: dict[str, Quota] = {}
        self.queue: list[Request] = []
        self.num_admissions = 0
        self._num_answered = 0
        self._num_sessions = 0

    # Queries.

    @property
    def all_runs(self) -> list[SeenRun]:
        """Running requests, with the one that is being put on its lane."""
        return [*self.runs, *([self.starting] if self.starting else [])]

    def find_run(self, request_id: str) -> SeenRun | None:
        return next((one for one in self.all_runs if one.request.request_id == request_id), None)

    def get_run(self, request_id: str) -> SeenRun:
        run = self.find_run(request_id)
        assert run is not None, f"request {request_id} has no lane"
        return run

    def path_to(self, identity: Identity, tokens: list[int], position: int) -> list[SeenState]:
        """Return the kept states that are proper prefixes, the deepest first."""
        found = [one for one in self.states if one.is_before(identity, tokens, position)]
        return sorted(found, key=lambda one: -one.position)

    def parent(self, state: SeenState) -> SeenState | None:
        path = self.path_to(state.identity, list(state.tokens), state.position)
        return path[0] if path else None

    def find_at(self, identity: Identity, tokens: Iterable[int]) -> SeenState | None:
        """Return the state after exactly these tokens."""
        wanted = tuple(tokens)
        found = [one for one in self.states if (one.identity, one.tokens) == (identity, wanted)]
        assert len(found) <= 1, "two states are kept at one position of one path"
        return found[0] if found else None

    def tables(self, but: Iterable[SeenState] = ()) -> list[tuple[int, ...]]:
        """Return every page table that is held."""
        gone = list(but)
        kept = [one.pages for one in self.states if one not in gone]
        running = [table for one in self.all_runs for table in (tuple(one.pages), one.taken_over)]
        return [*kept, *running]

    def own_pages(self, *states: SeenState) -> int:
        """Return how many pages come free if all of these states are freed."""
        others = {page for table in self.tables(states) for page in table}
        return len({page for one in states for page in one.pages} - others)

    @property
    def free_pages(self) -> set[int]:
        return set(range(self.num_pages)) - {page for table in self.tables() for page in table}

    @property
    def num_free_slots(self) -> int:
        capturing = [one for one in self.all_runs if one.capturing]
        return self.num_slots - len(self.states) - len(self.all_runs) - len(capturing)

    def displaced(self, tenant: str | None = None) -> list[SeenSession]:
        """Return the kept sessions that are the last ones of no lane."""
        return [
            one
            for one in self.sessions.values()
            if one.states
            and not one.is_shared
            and one not in self.lanes
            and tenant in (None, one.tenant)
        ]

    # Requests.

    def begin(self, run: SeenRun) -> None:
        """Begin to put a request on its lane; evictions, and then `Admitted`, follow."""
        self.queue.remove(run.request)
        self.num_admissions += 1
        self.starting = run
        run.session.num_running += 1
        if run.resumed is None:
            return
        run.resumed.resting_since = None
        run.used.append(run.resumed)
        if not run.is_taken_over and run.resumed.kind.is_boundary:
            run.boundary = run.resumed

    def hold_whole_pages(self, run: SeenRun) -> None:
        """Give the starting request the pages that it resumes but the last, which it copies."""
        assert run.resumed is not None
        assert run.position % PAGE_TOKENS, "a whole page is copied"
        if run.is_taken_over:
            assert self._is_shared(run.taken_over[-1]), "a page is copied that nobody else holds"
        run.pages = list(run.resumed.pages[:-1])

    def hold_resumed(self, run: SeenRun) -> None:
        """Give the starting request the pages that it resumes, unless it has copied the last."""
        if run.resumed is not None and not run.pages:
            if run.position % PAGE_TOKENS:
                assert run.is_taken_over, "a page of a kept state is written"
                assert not self._is_shared(run.taken_over[-1]), "a shared page is written"
            run.pages = list(run.resumed.pages)
        run.taken_over = ()

    def _is_shared(self, page: int) -> bool:
        return sum(page in table for table in self.tables()) > 1

    def take_plan(self, plan: StepPlan) -> None:
        """Note the slots of the plan."""
        if plan.preparation is not None:
            run = self.get_run(plan.preparation.request_id)
            for move in plan.preparation.moves:
                if isinstance(move, SlotCopy):
                    run.slot = move.dst
        for work in plan.work:
            run = self.get_run(work.request_id)
            run.slot, run.capture_slot = work.slot, work.capture_to

    def take_result(self, plan: StepPlan, result: StepResult) -> None:
        """Note what was computed, before the events of it."""
        for work in plan.work:
            if work.request_id not in result.failed:
                self.get_run(work.request_id).position = work.end

    def forget_captures(self) -> None:
        """Free the slots of captures of the step before, which another request has captured."""
        for run in self.runs:
            run.capturing = run.capture_slot = None

    # Events.

    def keep(self, event: events.StateKept, visits: Visits, now_s: float) -> SeenState:
        """Apply `StateKept`."""
        run = self.get_run(event.request_id)
        is_end = event.kind is StateKind.FRONTIER
        session = self.sessions.get(event.session_id)
        if session is None:
            assert event.session_id > self._num_sessions, "the id of a session returned"
            self._num_sessions = event.session_id
            session = SeenSession(event.session_id, run.request.tenant, is_shared=True)
            session.last_used_s = now_s
            self.sessions[event.session_id] = session
        slot = run.slot if is_end else run.capture_slot
        assert slot is not None, "a kept state has no slot"
        state = SeenState(
            state_id=event.state_id,
            session=session,
            identity=run.identity,
            tokens=tuple(run.tokens[: event.position]),
            path=run.tokens,
            kind=event.kind,
            slot=slot,
            pages=tuple(run.pages[: pages_for(event.position)]),
            visits=visits,
            last_used_s=now_s,
            is_marked=event.is_marked,
        )
        self.states.append(state)
        session.states.append(state)
        run.used.append(state)
        if is_end:
            run.slot = None
            return state
        run.capturing = run.capture_slot = None
        if event.kind.is_boundary:
            run.boundary = state
        return state

    def remove(self, state: SeenState, reason: EvictionReason) -> None:
        """Apply `Evicted`."""
        before = self.parent(state)
        run = self.starting
        if run is not None and run.is_taken_over and run.resumed is state:
            run.slot, run.taken_over = state.slot, state.pages
        is_dropped = reason is EvictionReason.DISPLACED and state.kind is StateKind.FRONTIER
        freed = SeenFreed(
            state.identity,
            state.tokens,
            state.kind,
            state.visits,
            is_dropped_current=is_dropped and not self._keep_current,
        )
        self.states.remove(state)
        state.session.states.remove(state)
        self._forget_if_gone(state.session)
        self.freed.append(freed)
        del self.freed[:-MAX_FREED]
        if before is not None:
            inherited = [*before.freed_beyond, *state.freed_beyond, freed]
            watched = [one for one in inherited if one in self.freed]
            before.freed_beyond = watched[-MAX_FREED_BEYOND:]

    def admit(self, event: events.Admitted, now_s: float) -> None:
        """Apply `Admitted`."""
        run, admission = self.starting, event.admission
        assert run is not None, "a request was admitted that was not planned"
        request = run.request
        self.hold_resumed(run)
        self.starting = None
        self.runs.append(run)
        session = run.session
        if session.session_id is None:
            assert admission.session_id > self._num_sessions, "the id of a session returned"
            self._num_sessions = session.session_id = admission.session_id
            self.sessions[admission.session_id] = session
        else:
            session.num_resumes += 1
        session.last_used_s = now_s
        session.prompt_tokens = request.prompt_tokens
        session.boundaries = request.boundaries
        session.is_lent = False
        if request.cache_policy.retain:
            session.priority = request.cache_policy.priority
            self._mark(request)
        if run.missed is not None and run.missed in self.freed:
            self.freed.remove(run.missed)
        if run.resumed is not None and not run.is_taken_over:
            run.resumed.last_used_s = now_s
        self.lanes[run.lane] = session

    def _mark(self, request: Request) -> None:
        for point in request.resume_points:
            if point.is_marked and point.position <= request.prompt_tokens:
                tokens = request.prompt.tokens[: point.position]
                kept = self.find_at(request.prompt.identity, tokens)
                if kept is not None:
                    kept.is_marked = True

    def undo(self, run: SeenRun) -> None:
        """Take a request off its lane whose state was not prepared."""
        self._leave(run)
        for lane, session in enumerate(self.lanes):
            is_busy = any(one.lane == lane for one in self.runs)
            if session is not None and not is_busy and not session.states:
                self.lanes[lane] = None

    def release(self, run: SeenRun, now_s: float) -> None:
        """Take a request off its lane that has ended."""
        session = run.session
        session.last_used_s = now_s
        self._num_answered += 1
        session.answered = self._num_answered
        for state in run.used:
            state.last_used_s = now_s
        self._leave(run)
        if not session.states:
            self.lanes[run.lane] = None

    def _leave(self, run: SeenRun) -> None:
        self.runs.remove(run)
        run.session.num_running -= 1
        for state in run.used:
            state.resting_since = self.num_admissions
        self._forget_if_gone(run.session)

    def _forget_if_gone(self, session: SeenSession) -> None:
        if not session.states and not session.num_running:
            self.sessions.pop(session.session_id or 0, None)
