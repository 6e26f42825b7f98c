"""One reconcile of one target: observe, plan, write the status, act.

Owns the order. The status is written first, on condition that the profile has not changed since it
was observed, also if the status stays the same and there are actions. So an edited profile is
observed again before anything is touched, and an operator that dies afterwards has recorded less
waiting than there was, never more. A reconcile may end anywhere after that: the next one continues
from what it observes.
"""

from __future__ import annotations

from collections.abc import Callable

from kvreg_operator.observe.observer import Observer
from kvreg_operator.plan.planning import Plan, plan
from kvreg_operator.reconcile.execution import Executor
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.target_queue import TargetKey

# Most actions take effect at once, and a drain causes no event.
AFTER_ACTION_S = 1.0
# Engines send no events; this is how late an idle one is noticed.
WHILE_WAITING_S = 3.0
_WAITS_FOR_A_USER = frozenset({"Paused", "Canary", "OnDelete"})


class Reconciler:
    """Reconciles targets. ``clock`` returns seconds since the epoch."""

    def __init__(
        self,
        observer: Observer,
        executor: Executor,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._observer = observer
        self._executor = executor
        self._metrics = metrics
        self._clock = clock

    async def reconcile(self, target: TargetKey) -> float | None:
        """Reconcile once; return the delay until the next time, or None to wait for an event.

        Raises:
            OperatorError: A request failed; the reconcile ended there.
        """
        observations = await self._observer.observe(target.namespace, target.name)
        if not observations:
            self._executor.forget(target)
        refused_job = self._executor.find_refused_job(target)
        if refused_job is not None:
            observations = tuple(each.with_failed_fit_job(*refused_job) for each in observations)
        plans = [plan(observation, self._clock()) for observation in observations]
        self._metrics.show_profiles(str(target), [each.status for each in plans])
        delays = [await self._carry_out(each) for each in plans]
        return min((delay for delay in delays if delay is not None), default=None)

    async def _carry_out(self, plan: Plan) -> float | None:
        if plan.is_change:
            if not await self._executor.write_status(plan):
                return None
            self._metrics.count_change(plan.profile.status, plan.status)
        await self._executor.execute(plan)
        self._metrics.reconciled("changed" if plan.is_change else "unchanged")
        return _delay_until_next_s(plan)


def _delay_until_next_s(plan: Plan) -> float | None:
    if plan.actions:
        return AFTER_ACTION_S
    waiting = plan.status.waiting_for
    if waiting is not None and waiting.reason not in _WAITS_FOR_A_USER:
        return WHILE_WAITING_S
    return None
