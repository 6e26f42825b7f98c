"""Wherever an exception is raised while requests are planned or taken in, it costs one request.

No fault point is named here. A scenario is played once to see which functions of the core are
called inside a verb, and then again for each of these calls, with an exception that is raised where
the call begins or where it ends. Calls that come along the same path are one point. The scheduler's
own functions are none: they are what contains a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from tests.unit.core.fault_scenarios import SCENARIOS, A, B, Scenario
from tests.unit.core.faults import Faults, InjectedFault, Moment, Point

from kvreg_service.core.events import (
    Cancelled,
    Failed,
    Finished,
    Terminal,
    TokenSampled,
)
from kvreg_service.core.ids import RequestId

TENANT = "tenant"
MOST_STEPS = 200
"""No scenario has as many; who needs more has been forgotten."""


@dataclass
class Played:
    """A scenario that has run to its end."""

    core: Any
    asked: dict[RequestId, dict[str, Any]]
    events: list[Any] = field(default_factory=list)

    def steps(self, faults: Faults, verb: str, limit: int = MOST_STEPS) -> None:
        """Go on until all is done, or for ``limit`` steps, and watch one of the two verbs."""
        core = self.core
        for _ in range(limit):
            if not core.scheduler.has_work:
                return
            core.now_s += 0.01
            with faults.watched_if(verb == "schedule"):
                plan = core.scheduler.schedule(core.now_s)
            core.scheduler.check_invariants()
            result = core.runner.execute(plan)
            with faults.watched_if(verb == "commit"):
                self.events += core.scheduler.commit(plan, result, core.now_s)
            core.scheduler.check_invariants()

    def cancel_first(self, faults: Faults) -> None:
        """Cancel the request that was asked first, and watch that."""
        with faults.watched_if(True):
            self.events += self.core.scheduler.cancel(next(iter(self.asked)), self.core.now_s)
        self.core.scheduler.check_invariants()


def _begin(make_core, scenario: Scenario) -> Played:
    options = dict(scenario.options)
    quota = options.pop("quota", None)
    core = make_core(**options)
    if quota is not None:
        core.scheduler.custody.set_quotas({TENANT: quota}, core.now_s)
    for request in scenario.kept:
        core.run(**request)
    return Played(core, {core.submit(**request): request for request in scenario.asked})


# What must hold.


class Expected:
    """The answers of runs in which nothing is kept, computed once."""

    def __init__(self, make_core) -> None:
        self._make_core = make_core
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def answer(self, prompt: list[int], max_tokens: int) -> list[int]:
        key = (max_tokens, *prompt)
        if key not in self._answers:
            self._answers[key] = self._make_core().run(prompt, max_tokens=max_tokens).answer
        return self._answers[key]


def _check_ends(played: Played, expected: Expected) -> None:
    """One request at most has failed, of the fault; the others are answered as if alone."""
    failed = []
    for request_id, request in played.asked.items():
        own = [event for event in played.events if _request_of(event) == request_id]
        ends = [event for event in own if isinstance(event, Terminal)]
        assert len(ends) == 1, f"{request_id} ended {len(ends)} times"
        assert own[-1] is ends[0], f"{request_id} went on after its end"
        tokens = [event.token for event in own if isinstance(event, TokenSampled)]
        wanted = expected.answer(request["prompt"], request["max_tokens"])
        if isinstance(ends[0], Finished):
            assert tokens == wanted, f"{request_id} was answered wrong"
        else:
            failed.append(ends[0])
            assert tokens == wanted[: len(tokens)], f"{request_id} was answered wrong"
    assert len(failed) <= 1, "more than one request has failed"
    for event in failed:
        is_fault = isinstance(event, Failed) and isinstance(event.error.__cause__, InjectedFault)
        assert isinstance(event, Cancelled) or is_fault


def _request_of(event: Any) -> RequestId | None:
    return getattr(event, "request_id", None)


def _check_next_turns(played: Played, scenario: Scenario, expected: Expected) -> None:
    """Every conversation can go on, from whatever is left of it."""
    for request in (*scenario.kept, *scenario.asked):
        prompt = [*request["prompt"], 3, 3, 3]
        outcome = played.core.run(prompt, boundary=len(prompt) - 1, max_tokens=2)
        assert outcome.answer == expected.answer(prompt, 2), "a next turn was answered wrong"


def _check_idle(core) -> None:
    """With everything kept given up, nothing is left."""
    placement = core.scheduler.holdings
    for sequence in list(core.kept()):
        core.scheduler.custody.drop(sequence.sequence_id)
    core.scheduler.check_invariants()
    assert placement.pages.num_free == core.num_pages
    assert placement.registry.num_kept == 0
    assert [lane.sequence for lane in placement.lanes] == [None] * core.lanes
    assert core.scheduler.queue_length == core.scheduler.num_running == 0


def _survey(
    make_core,
    scenario: Scenario,
    moment: Moment,
    act: Callable[[Played, Faults], None],
    is_chosen: Callable[[Point], bool] = lambda _: True,
) -> None:
    """Play the scenario once for each fault point; tell all of those that were not survived."""
    expected = Expected(make_core)
    dry = Faults(moment)
    played = _begin(make_core, scenario)
    act(played, dry)
    for leads_to in scenario.leads_to:
        assert any(map(leads_to, played.events)), "the precondition of this scenario"
    points = [point for point in dry.points if is_chosen(point)]
    broken = []
    for point in points:
        played = _begin(make_core, scenario)
        try:
            act(played, Faults(moment, raise_at=point.number))
            _check_ends(played, expected)
            _check_next_turns(played, scenario, expected)
            _check_idle(played.core)
        except Exception as error:  # noqa: BLE001 - reported with its fault point
            broken.append(f"{moment} {point.number}, {point.path}: {error!r}")
    assert not broken, f"{len(broken)} of {len(points)}:\n" + "\n".join(broken)


scenarios = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
moments = pytest.mark.parametrize("moment", get_args(Moment))


@moments
@scenarios
def test_a_fault_while_a_step_is_planned_costs_one_request(make_core, scenario, moment):
    _survey(make_core, scenario, moment, lambda p, f: p.steps(f, "schedule"))


@moments
@scenarios
def test_a_fault_while_a_step_is_taken_in_costs_one_request(make_core, scenario, moment):
    _survey(make_core, scenario, moment, lambda p, f: p.steps(f, "commit"))


@moments
@pytest.mark.parametrize(
    ("name", "num_steps"),
    [("cold in chunks", 1), ("restore", 2), ("borrow", 2), ("beside a neighbour", 3)],
)
def test_a_fault_while_a_request_is_cancelled_costs_no_other(make_core, name, num_steps, moment):
    def act(played: Played, faults: Faults) -> None:
        played.steps(Faults(moment), "", limit=num_steps)
        played.cancel_first(faults)
        played.steps(Faults(moment), "")

    _survey(make_core, SCENARIOS[name], moment, act)


@pytest.mark.parametrize("place", [0, 1], ids=["lane", "entry"])
def test_a_fault_while_a_sequence_is_dropped_leaves_the_pools_consistent(make_core, place):
    def act(played: Played, faults: Faults) -> None:
        sequence = played.core.kept()[place]
        with faults.watched_if(True), suppress(InjectedFault):
            played.core.scheduler.custody.drop(sequence.sequence_id)
        played.core.scheduler.check_invariants()

    for moment in get_args(Moment):
        _survey(make_core, Scenario({"entries": 1}, (A, B), ()), moment, act)
