"""Invariants of every plan, and of bookkeeping, states and pages after every step."""

from __future__ import annotations

from event_mirror import Mirror
from ranking import Profile
from seen import SeenState

from kvreg_service.core.ids import PAGE_TOKENS, pages_for
from kvreg_service.core.labels import StateKind
from kvreg_service.core.memory.pages import PageCopy
from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.core.scheduling.step import SlotCopy, StepPlan, Work
from kvreg_service.testing.fake_runner import FakeRunner


class StepAudit:
    """Compares the scheduler with the mirror and with the state slots and pages of the runner."""

    def __init__(
        self, scheduler: Scheduler, runner: FakeRunner, mirror: Mirror, profile: Profile
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._mirror = mirror
        self._profile = profile

    # Before the step.

    def check_plan(self, plan: StepPlan) -> None:
        """Check that each request progresses and writes only slots and pages of its own.

        The mirror has the state after the plan.
        """
        self._check_progress(plan)
        kept_slots = [one.slot for one in self._mirror.states]
        slots = [slot for run in self._mirror.runs for slot in run.slots]
        assert len({*kept_slots, *slots}) == len(kept_slots) + len(slots), "a slot has two owners"
        assert self._scheduler.store.slots.num_free == self._mirror.num_free_slots
        if plan.preparation is not None:
            self._check_moves(plan)
        for work in plan.work:
            run = self._mirror.get_run(work.request_id)
            assert work.slot == run.slot
            assert (work.lane, work.session_id) == (run.lane, run.session.session_id)
            assert list(work.pages) == run.pages
            assert list(work.token_ids) == run.tokens[work.start : work.end]
            assert work.start == run.position
            self._check_pages_written(work)

    def _check_moves(self, plan: StepPlan) -> None:
        assert plan.preparation is not None
        run = self._mirror.get_run(plan.preparation.request_id)
        moves, resumed = plan.preparation.moves, run.resumed
        slot_copies = [one for one in moves if isinstance(one, SlotCopy)]
        page_copies = [one for one in moves if isinstance(one, PageCopy)]
        if resumed is None:
            assert not moves, "a request that resumes nothing moves a state"
            return
        expected = [] if run.is_taken_over else [SlotCopy(resumed.slot, run.slot)]
        assert slot_copies == expected
        index, is_partial = divmod(resumed.position, PAGE_TOKENS)
        copied = run.pages[index] if is_partial else None
        if is_partial and copied == resumed.pages[index] and run.is_taken_over:
            assert not page_copies
            return
        assert page_copies == ([PageCopy(resumed.pages[index], copied)] if is_partial else [])

    def _check_pages_written(self, work: Work) -> None:
        """Check that what is written lies beyond every other use of a page."""
        for index in range(work.start // PAGE_TOKENS, pages_for(work.end)):
            page = work.pages[index]
            written_from = max(work.start, index * PAGE_TOKENS)
            for state in self._mirror.states:
                assert page not in state.pages[index:] or written_from >= state.position, (
                    f"state {state.state_id} at {state.position} is overwritten"
                )
                assert page not in state.pages[:index]
            for other in self._mirror.runs:
                if other.request.request_id != work.request_id:
                    assert page not in other.pages, "a request writes a page of another one"

    def _check_progress(self, plan: StepPlan) -> None:
        running = [lane for lane in self._scheduler.lanes if lane.run is not None]
        if not running:
            assert not self._scheduler.count_queued(), "a request waits while all lanes are idle"
            return
        at_work = {work.lane for work in plan.work}
        first_s = min(lane.run.request.arrival_s for lane in running)
        oldest = {lane.lane_id for lane in running if lane.run.request.arrival_s == first_s}
        assert oldest & at_work, "the oldest running request has no work in the plan"
        decoding = {lane.lane_id for lane in running if lane.run.num_output_tokens}
        assert decoding <= at_work, "a decoding request has no work in the plan"
        num_prefill = sum(len(work.token_ids) for work in plan.work if work.lane not in decoding)
        assert num_prefill <= self._scheduler.limits.prefill_chunk_tokens

    # After the step.

    def check_bookkeeping(self, now_s: float) -> None:
        """Check kept states, sessions, lanes and pools against the mirror and the runner."""
        self._scheduler.check_invariants(now_s)
        self._check_states()
        self._check_sessions()
        self._check_lanes()
        store = self._scheduler.store
        assert store.slots.num_free == self._mirror.num_free_slots
        assert store.pages.num_free == len(self._mirror.free_pages)
        if not self._profile.keep_current:
            for session in self._mirror.displaced():
                assert session.frontier is None, "a displaced session keeps its frontier"

    def check_none(self) -> None:
        """Check what `none` keeps at most, where nothing was ever pinned or within a quota."""
        displaced = self._mirror.displaced()
        heads = [one for one in self._mirror.states if one.kind is StateKind.HEAD]
        assert len(displaced) <= self._profile.entries
        assert len(heads) <= self._profile.anchors

    def _check_states(self) -> None:
        """Compare every kept state with its record, and what is in its slot and pages."""
        states = {one.state_id: one for one in self._scheduler.store}
        assert sorted(states) == sorted(one.state_id for one in self._mirror.states)
        for seen in self._mirror.states:
            state = states[seen.state_id]
            assert (state.session.session_id, state.kind) == (seen.session.session_id, seen.kind)
            assert state.ledger.identity == seen.identity
            assert tuple(state.ledger.tokens[: state.position]) == seen.tokens
            assert (state.slot, state.pages) == (seen.slot, seen.pages)
            assert state.is_marked == seen.is_marked
            assert state.visits.resting_since == seen.resting_since
            parent = self._mirror.parent(seen)
            assert (state.parent.state_id if state.parent else None) == (
                parent.state_id if parent else None
            )
            self._check_content(seen)

    def _check_content(self, seen: SeenState) -> None:
        assert self._runner.state(seen.slot) == seen.tokens, (
            f"state {seen.state_id} was written while it was kept"
        )
        assert self._runner.holds(seen.pages, seen.slot), (
            f"the pages of state {seen.state_id} were written while it was kept"
        )

    def _check_sessions(self) -> None:
        sessions = {one.session_id: one for one in self._scheduler.store.sessions}
        assert list(sessions) == list(self._mirror.sessions)
        for seen in self._mirror.sessions.values():
            session = sessions[seen.session_id]
            for name in (
                "tenant", "is_shared", "is_newcomer", "boundaries", "prompt_tokens",
                "num_resumes", "num_running", "answered", "last_used_s", "priority",
                "expires_s", "pinned_until_s",
            ):  # fmt: skip
                assert getattr(session, name) == getattr(seen, name), name
            if seen.tenant in self._mirror.quotas:
                assert session.is_lent == seen.is_lent
            essentials = [one.state_id for one in session.essentials]
            assert essentials == [one.state_id for one in seen.essentials]

    def _check_lanes(self) -> None:
        """Compare the last session of each lane, and what runs there."""
        runs = {run.lane: run for run in self._mirror.runs}
        for lane, last in zip(self._scheduler.lanes, self._mirror.lanes, strict=True):
            ids = [
                one.session_id if one is not None and (one.states or lane.is_busy) else None
                for one in (lane.session, last)
            ]
            assert ids[0] == ids[1], "a lane has another last session"
            seen, run = runs.get(lane.lane_id), lane.run
            assert (run is None) is (seen is None)
            if run is None or seen is None:
                continue
            assert run.request.request_id == seen.request.request_id
            assert list(run.ledger.tokens) == seen.tokens
            assert run.num_computed == seen.position
            assert run.pages == seen.pages
            assert seen.slot in (None, run.slot)
            boundary = run.boundary.state_id if run.boundary else None
            assert boundary == (seen.boundary.state_id if seen.boundary else None)
