"""Checks each event of a scheduler in its moment, and applies it to the mirror."""

from __future__ import annotations

from dataclasses import replace

from answers import Answers
from capture_oracle import CaptureOracle, freed_bytes
from event_mirror import Mirror
from expectations import Expectations
from ranking import COST, Ranking
from seen import SeenRun

from kvreg_service.core import events
from kvreg_service.core.labels import EvictionReason, StateKind
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.scheduler import Scheduler


class EventListener:
    """Owns the changes of one mirror that events report."""

    def __init__(
        self,
        scheduler: Scheduler,
        mirror: Mirror,
        answers: Answers,
        ranking: Ranking,
        captures: CaptureOracle,
        expected: Expectations,
    ) -> None:
        self._scheduler = scheduler
        self._mirror = mirror
        self._answers = answers
        self._ranking = ranking
        self._captures = captures
        self._expected = expected

    def hear(self, event: events.Event) -> None:
        """Check an event against what is expected, and apply it."""
        match event:
            case events.Evicted():
                self._evicted(event)
            case events.StateKept():
                self._kept(event)
            case events.PinEnded():
                session = self._expected.ending_pins.pop(0)
                assert session.session_id == event.session_id, "another pin is the largest"
                session.pinned_until_s = None
            case events.Detached() | events.Admitted() | events.Attached():
                self._announced(event)
            case events.ReuseFailed():
                assert self._expected.failed.get(event.request_id), (
                    "a request is retried that was prepared"
                )
                self.release_failed()
                self._answers.reuse_failed(event)
                self._mirror.queue.insert(0, self._answers.requests[event.request_id])
            case events.TokenSampled():
                run = self._mirror.get_run(event.request_id)
                run.tokens.append(event.token)
                if self._answers.sampled(event):
                    self.begin_end(run)
            case events.Terminal():
                self._ended(event)
            case _:
                raise AssertionError(f"unexpected: {event}")

    def is_late(self, request: Request) -> bool:
        """Whether a request has waited too long."""
        return self._expected.now_s - request.arrival_s > self._scheduler.limits.queue_timeout_s

    def begin_end(self, run: SeenRun) -> None:
        """Expect that a request ends now, whose state is valid."""
        policy = run.request.cache_policy
        self._mirror.ending, self._expected.is_frontier_due = run, False
        if policy.retain:
            ttl_s = policy.ttl_s
            run.session.expires_s = None if ttl_s is None else self._expected.now_s + ttl_s
            end = run.tokens[: run.position]
            if end and self._mirror.find_at(run.identity, end) is None:
                self._expected.is_frontier_due = True

    def release_ending(self) -> None:
        """Take the request off its lane that has just ended with a valid state."""
        run, self._mirror.ending = self._mirror.ending, None
        if run is not None:
            assert not self._expected.is_frontier_due, "the end of an answer was not kept"
            self._mirror.release(run, self._expected.now_s)

    def release_failed(self) -> None:
        """Follow the scheduler, which takes failed requests off their lanes one after another."""
        for run in tuple(self._mirror.runs):
            is_unprepared = self._expected.failed.get(run.request.request_id)
            if is_unprepared is None or self._scheduler.lanes[run.lane].is_busy:
                continue
            if is_unprepared:
                self._mirror.undo(run)
            else:
                self._mirror.release(run, self._expected.now_s)

    def _evicted(self, event: events.Evicted) -> None:
        (state,) = (one for one in self._mirror.states if one.state_id == event.state_id)
        expected = next(self._expected.victims, None)
        run = self._mirror.starting
        if expected is None and run is not None and run.taken_over:
            # Nothing may share the last page of the state any more, so that no copy is needed.
            victim = next(self._ranking.page_victims(run, 1, self._expected.now_s), None)
            expected = victim and (victim, EvictionReason.PAGES_NEEDED)
        if expected is None and event.reason is EvictionReason.SUPERSEDED:
            self._captures.check_superseded(state)
        else:
            assert expected == (state, event.reason), f"{event}, and not {expected}"
        assert event == events.Evicted(
            state_id=event.state_id,
            session_id=event.session_id,
            kind=state.kind,
            reason=event.reason,
            tenant=state.tenant,
            tokens=state.position,
            freed_bytes=freed_bytes(self._mirror, state),
        )
        assert event.session_id == state.session.session_id
        self._mirror.remove(state, event.reason)

    def _kept(self, event: events.StateKept) -> None:
        run = self._mirror.get_run(event.request_id)
        assert run.request.cache_policy.retain, "a state of a passing request is kept"
        is_shared = False
        if event.kind is StateKind.FRONTIER:
            assert run is self._mirror.ending
            assert self._expected.is_frontier_due
            assert event.position == run.position
            assert not event.is_marked
            self._expected.is_frontier_due = False
        else:
            point = run.capturing
            assert point is not None, "a state is kept that was not captured"
            assert (event.position, event.kind, event.is_marked) == (
                point.position,
                point.kind,
                point.is_marked,
            )
            is_branch = event.kind is StateKind.BRANCH_POINT
            is_shared = event.kind is StateKind.HEAD or (is_branch and not run.session.num_resumes)
        assert (event.session_id not in self._mirror.sessions) is is_shared
        assert is_shared or event.session_id == run.session.session_id
        (state,) = (one for one in self._scheduler.store if one.state_id == event.state_id)
        self._mirror.keep(event, state.visits, self._expected.now_s)

    def _announced(self, event: events.Detached | events.Admitted | events.Attached) -> None:
        self._expected.finish_evictions()
        announcements = self._expected.announcements
        expected = announcements.pop(0) if announcements else None
        assert expected is type(event), f"{event} out of order"
        match event:
            case events.Detached():
                self._detached(event)
            case events.Admitted():
                assert self._expected.admission is not None
                run, session_id = self._mirror.starting, event.admission.session_id
                expected_admission = replace(self._expected.admission, session_id=session_id)
                assert event.admission == expected_admission, (
                    f"{event.admission}, and not {expected_admission}"
                )
                assert run is not None
                assert run.session.session_id in (None, session_id)
                assert event.request_id == run.request.request_id
                self._answers.admitted(event)
                self._mirror.admit(event, self._expected.now_s)
            case events.Attached():
                run = self._mirror.get_run(event.request_id)
                assert run.resumed is not None
                assert event.session_id == run.resumed.session.session_id
                assert self._expected.admission is not None
                path = self._expected.admission.reuse_path
                assert (event.lane, event.path) == (run.lane, path)

    def _detached(self, event: events.Detached) -> None:
        run = self._mirror.starting
        assert run is not None
        self._mirror.hold_resumed(run)
        last = self._mirror.lanes[run.lane]
        assert last is not None
        held = COST.held_bytes(len(last.states), self._mirror.own_pages(*last.states))
        session_id = last.session_id
        assert event == events.Detached(session_id, run.lane, len(last.states), held)

    def _ended(self, event: events.Terminal) -> None:
        assert self._mirror.ending is None, "a request ended before it was settled"
        self._answers.ended(event)
        queued = [one for one in self._mirror.queue if one.request_id == event.request_id]
        if queued:
            assert isinstance(event, events.Cancelled) or self.is_late(queued[0])
            self._mirror.queue.remove(queued[0])
        elif event.request_id in self._expected.failed:
            assert isinstance(event, events.Failed)
            self.release_failed()
        assert self._mirror.find_run(event.request_id) is None, "an ended request has a lane"
