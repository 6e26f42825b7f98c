"""A scheduler with a fake runner, as its engine and its clients drive it.

Each decision and event is checked in its moment. After every step the scheduler's bookkeeping is
compared with the mirror's, and the runner's states and pages with both.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from answers import Answers, next_token
from event_mirror import Mirror
from event_tap import EventTap, disagreements
from observer import Observer
from ranking import COST, Profile
from seen import SeenSession
from step_audit import StepAudit

from kvreg_service.core import events
from kvreg_service.core.errors import KvregError, Overloaded, PinRefused, QueueTimeout, SessionBusy
from kvreg_service.core.ids import RequestId, SessionId
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.core.states.policies import find_policy
from kvreg_service.core.states.quota import Quota
from kvreg_service.testing.fake_runner import FakeRunner


class ObservedScheduler:
    """Drives a scheduler. ``on_answer`` gets every full output.

    ``failing`` holds requests whose next work fails; the flags fail the next moves or capture.
    """

    def __init__(
        self,
        profile: Profile,
        num_pages: int,
        chunk_tokens: int,
        queue_limit: int,
        on_answer: Callable[[RequestId, list[int]], None],
    ) -> None:
        self.profile = profile
        layout = SlotLayout(
            profile.lanes, profile.entries, profile.keep_current, anchors=profile.anchors
        )
        limits = SchedulerLimits(
            layout, num_pages, profile.context_tokens, chunk_tokens, queue_limit
        )
        self.scheduler = Scheduler(limits, find_policy(profile.policy), COST)
        self.runner = FakeRunner(layout.num_slots, num_pages, next_token)
        self.mirror = Mirror(profile.lanes, layout.num_slots, num_pages, profile.keep_current)
        self.answers = Answers(profile.context_tokens, on_answer)
        self.observer = Observer(self.scheduler, self.mirror, profile, self.answers)
        self.audit = StepAudit(self.scheduler, self.runner, self.mirror, profile)
        self.failing: set[str] = set()
        self.fails_next_moves = self.fails_next_capture = False
        self.now_s = 1000.0
        self._was_anything_protected = False

    # Calls of clients and administrators.

    def submit(self, request: Request) -> bool:
        """Submit a request; return whether the queue had room."""
        try:
            self.scheduler.submit(request)
        except Overloaded:
            num_idle = self.profile.lanes - self.scheduler.num_running
            limit = self.scheduler.limits.queue_limit
            # A request whose moves failed is queued again even above the limit.
            assert self.scheduler.count_queued() - num_idle >= limit
            return False
        self.mirror.queue.append(self.answers.submitted(request))
        return True

    def cancel(self, request_id: str) -> None:
        heard = self._listen()
        run = self.mirror.find_run(request_id)
        if run is not None:
            self.observer.listener.begin_end(run)
        with disagreements():
            emitted = self.scheduler.cancel(RequestId(request_id), self.now_s)
        assert emitted == heard
        assert isinstance(emitted[-1], events.Cancelled)
        self._check()

    def sessions(self) -> list[SeenSession]:
        """Return the sessions that are kept, the oldest first."""
        return [one for one in self.mirror.sessions.values() if one.states]

    def pick(self, index: int) -> SeenSession:
        kept = self.sessions()
        return kept[index % len(kept)]

    def pin(self, session: SeenSession, seconds: float) -> None:
        pin, session_id = self.scheduler.sessions.pin, SessionId(session.session_id)
        if session.num_running:
            with pytest.raises(SessionBusy):
                pin(session_id, seconds, self.now_s)
            return
        may_pin = self.observer.shares.may_pin(session, self.now_s)
        try:
            pin(session_id, seconds, self.now_s)
        except PinRefused:
            assert not may_pin, "a pin was refused although enough memory remains"
            return
        assert may_pin, "a pin was granted although too little memory remains"
        self._was_anything_protected = True
        session.pinned_until_s = self.now_s + seconds

    def unpin(self, session: SeenSession) -> None:
        unpin, session_id = self.scheduler.sessions.unpin, SessionId(session.session_id)
        if session.num_running:
            with pytest.raises(SessionBusy):
                unpin(session_id)
            return
        unpin(session_id)
        session.pinned_until_s = None

    def set_quotas(self, quotas: dict[str, Quota]) -> None:
        heard = self._listen()
        self._was_anything_protected = True
        self.mirror.quotas = quotas
        for one in self.mirror.sessions.values():
            one.is_lent = False
        before = list(heard)
        with disagreements():
            emitted = self.scheduler.sessions.set_quotas(quotas, self.now_s)
        assert heard == before, "events of the change are also reported by the next step"
        assert all(isinstance(one, events.Evicted | events.PinEnded) for one in emitted)
        self._check()

    def drop(self, session: SeenSession) -> None:
        """Drop a session; between the plan and the result of a step as well."""
        session_id = SessionId(session.session_id)
        if session.num_running:
            with pytest.raises(SessionBusy):
                self.scheduler.sessions.drop(session_id, session.tenant)
            return
        if not isinstance(self.scheduler.store.events, EventTap):
            self._listen()
        states = list(session.states)
        self.observer.expected.expect_freed([(one, EvictionReason.REQUESTED) for one in states])
        with disagreements():
            emitted = self.scheduler.sessions.drop(session_id, session.tenant)
        self.observer.expected.finish_evictions()
        assert [one.state_id for one in emitted] == [one.state_id for one in states]

    # Steps of the engine.

    def drain(self) -> None:
        # The most steps that the open requests can need: prefill chunks, captures, decode steps.
        bound = 0
        for request_id in self.answers.open_requests():
            request = self.answers.requests[request_id]
            chunk = self.scheduler.limits.prefill_chunk_tokens
            bound += 4 + len(request.resume_points) + request.prompt_tokens // chunk
            bound += request.max_tokens
        num_steps = 0
        while self.scheduler.has_work:
            self.step()
            num_steps += 1
            assert num_steps <= bound, "a request starves"

    def step(self, dropped: int | None = None) -> None:
        """Run one step, during which the picked session is dropped."""
        heard = self._listen()
        self.observer.begin_schedule()
        with disagreements():
            plan = self.scheduler.schedule(self.now_s)
        self.observer.end_schedule()
        self.mirror.take_plan(plan)
        self.observer.captures.check_plan(plan)
        self.audit.check_plan(plan)
        self._inject(plan)
        result = self.runner.execute(plan)
        if dropped is not None and self.sessions():
            self.drop(self.pick(dropped))
        self.now_s += 0.25
        self._commit(plan, result, heard)
        self._check()

    def _commit(self, plan: StepPlan, result: StepResult, heard: list[events.Event]) -> None:
        num_planned = len(heard)
        captures = [
            (work.request_id, self.mirror.get_run(work.request_id), work.end)
            for work in plan.work
            if work.capture_to is not None and work.request_id not in result.failed
        ]
        self.mirror.take_result(plan, result)
        self.answers.computed(plan, result)
        self.observer.begin_commit(plan, result, self.now_s)
        with disagreements():
            emitted = self.scheduler.commit(plan, result, self.now_s)
        assert emitted == heard
        self.observer.end_commit()
        kept = [one for one in emitted[num_planned:] if isinstance(one, events.StateKept)]
        for request_id, run, position in captures:
            tokens = run.tokens[:position]
            assert any(
                one.request_id == request_id
                or self.answers.requests[one.request_id].prompt.tokens[:position].tolist() == tokens
                for one in kept
                if one.position == position
            ), "a captured state was not kept"
        for one in emitted:
            if isinstance(one, events.Failed) and not isinstance(one.error, QueueTimeout):
                assert one.request_id in result.failed, one.error

    def _inject(self, plan: StepPlan) -> None:
        failing = self.failing & {work.request_id for work in plan.work}
        self.failing -= failing
        captures = {work.request_id for work in plan.work if work.capture_to is not None}
        if self.fails_next_capture and captures:
            failing |= captures
            self.fails_next_capture = False
        self.runner.fails_moves = self.fails_next_moves and plan.preparation is not None
        if self.runner.fails_moves:
            failing = {plan.preparation.request_id}
            self.fails_next_moves = False
        self.runner.fail_next = {RequestId(i): KvregError("injected") for i in failing}

    # Checks.

    def _listen(self) -> list[events.Event]:
        return self.observer.listen(self.now_s)

    def _check(self) -> None:
        self.observer.expected.finish_evictions()
        self.mirror.forget_captures()
        self.audit.check_bookkeeping(self.now_s)
        self.observer.shares.check(self.now_s)
        if self.profile.is_none and not self._was_anything_protected:
            self.audit.check_none()

    def drain_and_drop_all(self) -> None:
        """Finish all requests and drop all kept sessions; check that nothing is leaked."""
        self.drain()
        assert set(self.answers.terminals) == set(self.answers.requests)
        for session in self.sessions():
            self.drop(session)
        self._check()
        assert not self.mirror.sessions
        store, limits = self.scheduler.store, self.scheduler.limits
        assert store.slots.num_free == limits.layout.num_slots
        assert store.pages.num_free == limits.num_pages
