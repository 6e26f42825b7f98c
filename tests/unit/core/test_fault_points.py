"""An exception anywhere in the core, while the scheduler plans or commits, fails one request.

The fault points are discovered. A scenario runs once without faults to record the core functions
that each scheduler call reaches. It then runs again for each of them, from a snapshot taken just
before that scheduler call, with an exception where the function is entered or where it returns.
Function calls along the same path are one fault point. The scheduler's own functions are not fault
points, because they handle the faults.

Many faults result in the same state of scheduler and runner. A state determines all later results,
so the next turns are checked once for each state.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from tests.unit.core.fault_scenarios import SCENARIOS, A, B, Scenario
from tests.unit.core.faults import Faults, InjectedFault, Moment, Point
from tests.unit.core.scenario_run import Call, ScenarioRun

from kvreg_service.core.events import (
    Cancelled,
    Failed,
    Finished,
    Terminal,
    TokenSampled,
)
from kvreg_service.core.ids import RequestId


class Expected:
    """Outputs of cold runs, each computed once."""

    def __init__(self, make_core) -> None:
        self._make_core = make_core
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def answer(self, prompt: list[int], max_tokens: int) -> list[int]:
        key = (max_tokens, *prompt)
        if key not in self._answers:
            self._answers[key] = self._make_core().run(prompt, max_tokens=max_tokens).answer
        return self._answers[key]


def _check_ends(run: ScenarioRun, expected: Expected) -> None:
    """Check that at most one request fails, with the fault; the others have the right output."""
    failed = []
    for request_id, request in run.requests.items():
        own = [event for event in run.events if _request_of(event) == request_id]
        ends = [event for event in own if isinstance(event, Terminal)]
        assert len(ends) == 1, f"{request_id} ended {len(ends)} times"
        assert own[-1] is ends[0], f"{request_id} has events after its terminal event"
        tokens = [event.token for event in own if isinstance(event, TokenSampled)]
        wanted = expected.answer(request["prompt"], request["max_tokens"])
        if isinstance(ends[0], Finished):
            assert tokens == wanted, f"{request_id} has a wrong answer"
        else:
            failed.append(ends[0])
            assert tokens == wanted[: len(tokens)], f"{request_id} has a wrong answer"
    assert len(failed) <= 1, "more than one request failed"
    for event in failed:
        is_fault = isinstance(event, Failed) and isinstance(event.error.__cause__, InjectedFault)
        assert isinstance(event, Cancelled) or is_fault


def _request_of(event: Any) -> RequestId | None:
    return getattr(event, "request_id", None)


def _check_next_turns(run: ScenarioRun, scenario: Scenario, expected: Expected) -> None:
    """Check that the next turn of every conversation has the right output."""
    for request in (*scenario.kept, *scenario.submitted):
        prompt = [*request["prompt"], 3, 3, 3]
        outcome = run.core.run(prompt, boundary=len(prompt) - 1, max_tokens=2)
        assert outcome.answer == expected.answer(prompt, 2), "a next turn has a wrong answer"


def _check_idle(core) -> None:
    """Check that all pages, slots and lanes are free once all kept sessions are dropped."""
    for session in core.sessions():
        core.scheduler.sessions.drop(session.session_id)
    core.check()
    store = core.scheduler.store
    assert store.pages.num_free == core.num_pages
    assert store.slots.num_free == core.layout.num_slots
    assert store.sessions == []
    assert core.scheduler.count_queued() == core.scheduler.num_running == 0


@dataclass(frozen=True)
class Snapshot:
    """A run just before a call, and the fault points that are new in this call."""

    run: bytes
    points: list[Point]


def _record(run: ScenarioRun, call: Call, moment: Moment) -> list[Snapshot]:
    """Complete a run without faults; take a snapshot before each call with new fault points."""
    snapshots = []
    found = Faults(moment)
    while (next_call := run.next_call()) is not None:
        if next_call != call:
            run.advance()
            continue
        before, num_known = run.snapshot(), len(found.points)
        run.advance(found)
        if found.points[num_known:]:
            snapshots.append(Snapshot(before, found.points[num_known:]))
    return snapshots


def _sweep(make_core, scenario: Scenario, call: Call, moment: Moment, **options: int) -> None:
    """Complete the scenario once for each fault point, from the snapshot before its call."""
    expected = Expected(make_core)
    run = ScenarioRun.begin(make_core, scenario, **options)
    snapshots = _record(run, call, moment)
    for leads_to in scenario.leads_to:
        assert any(map(leads_to, run.events)), "precondition of this scenario"
    broken = []
    checked_states: set[bytes] = set()
    for snapshot in snapshots:
        for point in snapshot.points:
            faults = Faults(moment, raise_at=point.number)
            run = pickle.loads(snapshot.run)
            try:
                run.advance(faults)
                assert faults.raised_at == point.path, "another fault point"
                run.finish()
                _check_ends(run, expected)
                state = pickle.dumps(run.core)
                if state not in checked_states:
                    _check_next_turns(run, scenario, expected)
                    _check_idle(run.core)
                    checked_states.add(state)
            except Exception as error:  # noqa: BLE001 - reported with its fault point
                broken.append(f"{moment} {point.number}, {point.path}: {error!r}")
    assert not broken, f"{len(broken)} broken:\n" + "\n".join(broken)


scenarios = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
moments = pytest.mark.parametrize("moment", get_args(Moment))


@moments
@scenarios
def test_fault_in_schedule_fails_one_request(make_core, scenario, moment):
    _sweep(make_core, scenario, "schedule", moment)


@moments
@scenarios
def test_fault_in_commit_fails_one_request(make_core, scenario, moment):
    _sweep(make_core, scenario, "commit", moment)


@moments
@pytest.mark.parametrize(
    ("name", "num_steps"),
    [
        ("cold in chunks", 1),
        ("restore", 2),
        ("request that is not retained", 2),
        ("beside a running request", 3),
    ],
)
def test_fault_in_cancel_fails_no_other_request(make_core, name, num_steps, moment):
    _sweep(make_core, SCENARIOS[name], "cancel", moment, steps_before_cancel=num_steps)


@moments
@pytest.mark.parametrize("index", [0, 1], ids=["displaced", "on a lane"])
def test_fault_in_drop_leaves_the_pools_consistent(make_core, index, moment):
    _sweep(make_core, Scenario({"entries": 1}, (A, B), ()), "drop", moment, dropped=index)
