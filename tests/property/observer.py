"""Hears each decision and each event of a scheduler in its moment, and asks the oracles about it.

Learned rates change within a step, so that an oracle could not repeat a decision afterwards.
"""

from __future__ import annotations

from admission_oracle import AdmissionOracle
from answers import Answers
from capture_oracle import CaptureOracle
from event_listener import EventListener
from event_mirror import Mirror
from event_tap import EventTap, strictly
from expectations import Expectations
from ranking import Profile, Ranking
from share_oracle import ShareOracle

from kvreg_service.core import events
from kvreg_service.core.ids import PageId
from kvreg_service.core.labels import Attach, EvictionReason
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.admission import AdmissionPlan
from kvreg_service.core.scheduling.lane import Run
from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.core.states.kept_state import KeptState
from kvreg_service.core.states.policies import Prospect


class Observer:
    """Taps one scheduler. Its mirror is up to date with every event."""

    def __init__(
        self, scheduler: Scheduler, mirror: Mirror, profile: Profile, answers: Answers
    ) -> None:
        self._scheduler = scheduler
        self._mirror = mirror
        ranking = Ranking(mirror, profile, scheduler.store.rates.rate)
        self._ranking = ranking
        self._admissions = AdmissionOracle(mirror, profile, ranking)
        self.captures = CaptureOracle(mirror, profile, ranking)
        self.shares = ShareOracle(mirror, profile, ranking)
        self.expected = Expectations()
        self.listener = EventListener(
            scheduler, mirror, answers, ranking, self.captures, self.expected
        )
        self._is_planned = True
        self._tap_decisions()

    def listen(self, now_s: float) -> EventTap:
        """Hear the events of the next call; return the list in which they are collected."""
        self.expected.now_s = now_s
        tap = EventTap(self._hear)
        self._scheduler.store.events = tap
        return tap

    def _tap_decisions(self) -> None:
        scheduler, reservations = self._scheduler, self._scheduler._reservations
        self._plan, scheduler.planner.plan = scheduler.planner.plan, self._hear_plan
        self._allocate = scheduler.eviction.allocate
        scheduler.eviction.allocate = self._hear_allocation
        self._make_room_for = scheduler.eviction.make_room_for
        scheduler.eviction.make_room_for = self._hear_capture
        self._settle, reservations.settle = reservations.settle, self._hear_settlement

    # Calls.

    def begin_schedule(self) -> None:
        """Expect that pins and times to live end."""
        now_s, self._is_planned = self.expected.now_s, False
        for session in self._mirror.sessions.values():
            if not session.is_pinned(now_s):
                session.pinned_until_s = None
        over = [
            one
            for one in self._mirror.sessions.values()
            if one.expires_s is not None
            and one.expires_s <= now_s
            and not one.num_running
            and not one.is_pinned(now_s)
        ]
        states = [state for session in over for state in session.states]
        self.expected.expect_freed([(one, EvictionReason.EXPIRED) for one in states])

    def end_schedule(self) -> None:
        """Check that whatever had to happen did."""
        next_request = self._next_request()
        assert next_request is None, "no request was admitted although one fits"
        self.expected.finish_evictions()
        assert not self.expected.announcements, "an admission was not announced"

    def begin_commit(self, plan: StepPlan, result: StepResult, now_s: float) -> None:
        """Expect that the requests fail for which the runner reports an error."""
        self.expected.now_s = now_s
        prepared = plan.preparation.request_id if plan.preparation else None
        self.expected.failed = {
            one: one == prepared and not result.is_prepared for one in result.failed
        }

    def end_commit(self) -> None:
        """Check that every failed request is off its lane."""
        assert not [
            one for one in self._mirror.runs if one.request.request_id in self.expected.failed
        ]
        self.expected.failed = {}

    def _next_request(self) -> Request | None:
        """Return the request that must be admitted in this step, when this is decided."""
        if self._is_planned:
            return None
        self._is_planned = True
        self.expected.finish_evictions()
        assert not [one for one in self._mirror.queue if self.listener.is_late(one)]
        self.captures.begin_step()
        return self.shares.next_request(self.expected.now_s)

    @strictly
    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.Evicted) and event.reason is EvictionReason.SUPERSEDED:
            assert self._next_request() is None
        self.listener.hear(event)

    # Decisions.

    @strictly
    def _hear_plan(self, request: Request, now_s: float) -> AdmissionPlan | None:
        expected = self._next_request()
        assert expected is not None, "a request was admitted that does not fit"
        assert expected.request_id == request.request_id, "another request was next"
        plan = self._plan(request, now_s)
        assert plan is not None, "no lane is idle"
        run, freed = self._admissions.check(plan, expected, now_s)
        admission = self._admissions.expected_admission(run, now_s)
        self.expected.admission = admission
        last = self._mirror.lanes[run.lane]
        is_detached = last is not None and bool(last.states) and last is not run.session
        is_attached = admission.attach is not Attach.NONE
        self.expected.announcements = [
            *([events.Detached] if is_detached else []),
            events.Admitted,
            *([events.Attached] if is_attached else []),
        ]
        self._mirror.begin(run)
        self.expected.expect_freed(freed)
        return plan

    @strictly
    def _hear_allocation(
        self, run: Run, count: int, after: PageId | None, room: int | None, now_s: float
    ) -> list[PageId]:
        assert self._next_request() is None
        seen = self._mirror.get_run(run.request.request_id)
        self.expected.finish_evictions()
        if seen is self._mirror.starting:
            self._mirror.hold_whole_pages(seen)
        victims = self._ranking.page_victims(seen, count, now_s)
        self.expected.expect_freed((one, EvictionReason.PAGES_NEEDED) for one in victims)
        taken = self._allocate(run, count, after, room, now_s)
        self.expected.finish_evictions()
        assert len(set(taken)) == len(taken) == count
        assert self._mirror.free_pages.issuperset(taken), "a page in use was allocated"
        seen.pages += taken
        return taken

    @strictly
    def _hear_capture(
        self,
        run: Run,
        prospect: Prospect,
        now_s: float,
        *,
        must_capture: bool,
        passed: list[KeptState],
    ) -> bool:
        assert self._next_request() is None
        seen = self._mirror.get_run(run.request.request_id)
        self.expected.finish_evictions()
        must, is_captured, expected_passed, victim = self.captures.decide(
            seen, prospect.visits, now_s
        )
        assert must_capture == must
        assert {one.state_id for one in passed} == {one.state_id for one in expected_passed}
        self.expected.expect_freed([(victim, EvictionReason.SLOT_NEEDED)] if victim else [])
        actual = self._make_room_for(run, prospect, now_s, must_capture=must_capture, passed=passed)
        assert actual is is_captured, "a state is captured that is worth no slot, or is not"
        self.expected.finish_evictions()
        return actual

    @strictly
    def _hear_settlement(self, tenant: str, now_s: float) -> None:
        self.listener.release_ending()
        self.listener.release_failed()
        self.expected.ending_pins = self.shares.ending_pins(now_s)
        victims = self.shares.quota_victims(tenant, now_s)
        self.expected.expect_freed((one, EvictionReason.QUOTA) for one in victims)
        self._settle(tenant, now_s)
        self.expected.finish_evictions()
        assert not self.expected.ending_pins, "a pin that leaves too little was not ended"
        if self.shares.is_anything_protected():
            self.shares.lend(tenant, now_s)
