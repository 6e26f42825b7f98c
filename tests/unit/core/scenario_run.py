"""Runs a scenario one scheduler call at a time, so that a snapshot can be taken before each call.

Defines the order of the calls. Does not choose fault points or check results.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.unit.core.fault_scenarios import Scenario
from tests.unit.core.faults import Faults, InjectedFault

from kvreg_service.core.ids import RequestId
from kvreg_service.core.scheduling.step import StepPlan, StepResult

TENANT = "tenant"
MAX_CALLS = 400
"""More calls than any scenario needs. A longer run means that a request never completed."""

Call = Literal["schedule", "commit", "cancel", "drop"]


@dataclass
class ScenarioRun:
    """A scheduler and its runner, after the requests of a scenario are submitted.

    After ``steps_before_cancel`` steps the first request is cancelled. With ``dropped``, the
    run starts by dropping the kept session at that index.
    """

    core: Any
    requests: dict[RequestId, dict[str, Any]]
    steps_before_cancel: int | None = None
    dropped: int | None = None
    events: list[Any] = field(default_factory=list)
    _num_steps: int = 0
    _num_other_calls: int = 0
    _executed: tuple[StepPlan, StepResult] | None = None

    @classmethod
    def begin(
        cls, make_core: Callable[..., Any], scenario: Scenario, **options: int | None
    ) -> ScenarioRun:
        """Serve the ``kept`` requests of a scenario and submit the ``submitted`` ones."""
        core_options = dict(scenario.options)
        quota = core_options.pop("quota", None)
        core = make_core(**core_options)
        if quota is not None:
            core.scheduler.sessions.set_quotas({TENANT: quota}, core.now_s)
        for request in scenario.kept:
            core.run(**request)
        requests = {core.submit(**request): request for request in scenario.submitted}
        return cls(core, requests, **options)

    def snapshot(self) -> bytes:
        """Return the pickled run. `pickle.loads` restores it."""
        return pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL)

    def next_call(self) -> Call | None:
        """Return the call that `advance` makes next; None when the run is complete."""
        if self._executed is not None:
            return "commit"
        if self._num_other_calls == 0 and self.dropped is not None:
            return "drop"
        if self._num_other_calls == 0 and self._num_steps == self.steps_before_cancel:
            return "cancel"
        return "schedule" if self.core.scheduler.has_work else None

    def advance(self, faults: Faults | None = None) -> None:
        """Make the next call, observed by ``faults``, and check all invariants after it."""
        observed = nullcontext() if faults is None else faults.observe()
        match self.next_call():
            case "schedule":
                self._schedule(observed)
            case "commit":
                self._commit(observed)
            case "cancel":
                self._cancel(observed)
            case "drop":
                self._drop(observed)
            case None:
                raise AssertionError("the run is complete")

    def finish(self) -> None:
        """Make all remaining calls."""
        for _ in range(MAX_CALLS):
            if self.next_call() is None:
                return
            self.advance()

    def _schedule(self, observed: AbstractContextManager[None]) -> None:
        core = self.core
        core.now_s += 0.01
        with observed:
            plan = core.scheduler.schedule(core.now_s)
        core.check()
        self._executed = plan, core.runner.execute(plan)

    def _commit(self, observed: AbstractContextManager[None]) -> None:
        assert self._executed is not None
        plan, result = self._executed
        with observed:
            self.events += self.core.scheduler.commit(plan, result, self.core.now_s)
        self._executed = None
        self._num_steps += 1
        self.core.check()

    def _cancel(self, observed: AbstractContextManager[None]) -> None:
        self._num_other_calls += 1
        with observed:
            self.events += self.core.scheduler.cancel(next(iter(self.requests)), self.core.now_s)
        self.core.check()

    def _drop(self, observed: AbstractContextManager[None]) -> None:
        assert self.dropped is not None
        self._num_other_calls += 1
        session = self.core.sessions()[self.dropped]
        # `drop` raises the fault to its caller; the pools must still be consistent.
        with suppress(InjectedFault), observed:
            self.core.scheduler.sessions.drop(session.session_id)
        self.core.check()
