"""The metrics of the operator, and which changes of a status they count.

Owns names, labels and their values. All children exist from the start, so that the rate of what
never happened is 0.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Collection
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from kvreg_operator.crd.profile import ConditionType, ProfileStatus
from kvreg_operator.plan.gates import DeferralReason

WatchKind = Literal["KVRegistryProfile", "StatefulSet", "Pod"]
RollResult = Literal["completed", "failed", "superseded"]
ReconcileResult = Literal["unchanged", "changed", "temporary_error", "permanent_error"]


class OperatorMetrics:
    """Counts what the operator does. ``clock`` returns monotonic seconds."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._statuses: dict[str, Collection[ProfileStatus]] = {}
        self._profiles = Gauge(
            "kvreg_operator_profiles",
            "Profiles whose condition is true.",
            ["condition"],
            registry=registry,
        )
        self._rolls = Counter(
            "kvreg_operator_rolls", "Rollouts, by how they ended.", ["result"], registry=registry
        )
        self._deferrals = Counter(
            "kvreg_operator_deferrals",
            "Rollouts that were deferred, by reason.",
            ["reason"],
            registry=registry,
        )
        self._watch_age = Gauge(
            "kvreg_operator_watch_age_seconds",
            "Time since an event or a list of a kind of object arrived.",
            ["kind"],
            registry=registry,
        )
        self._reconciles = Counter(
            "kvreg_operator_reconciles",
            "Reconciles of profiles, by result.",
            ["result"],
            registry=registry,
        )
        for condition in get_args(ConditionType):
            self._profiles.labels(condition)
        for result in get_args(RollResult):
            self._rolls.labels(result)
        for reason in get_args(DeferralReason):
            self._deferrals.labels(reason)
        for result in get_args(ReconcileResult):
            self._reconciles.labels(result)
        for kind in get_args(WatchKind):
            self.note_seen(kind)

    def note_seen(self, kind: WatchKind) -> None:
        """Note that an event or a list of this kind has just arrived."""
        since = self._clock()
        self._watch_age.labels(kind).set_function(lambda: self._clock() - since)

    def reconciled(self, result: ReconcileResult) -> None:
        """Count one reconcile of a profile."""
        self._reconciles.labels(result).inc()

    def show_profiles(self, target: str, statuses: Collection[ProfileStatus]) -> None:
        """Replace the profiles of a target in the counts by condition."""
        self._statuses.pop(target, None)
        if statuses:
            self._statuses[target] = statuses
        shown = [status for each in self._statuses.values() for status in each]
        true = Count(c.type for status in shown for c in status.conditions if c.status == "True")
        for condition in get_args(ConditionType):
            self._profiles.labels(condition).set(true[condition])

    def count_change(self, previous: ProfileStatus, status: ProfileStatus) -> None:
        """Count the rollout that ended and the deferral that began between two statuses."""
        if (result := find_roll_result(previous, status)) is not None:
            self._rolls.labels(result).inc()
        if (reason := find_new_deferral(previous, status)) is not None:
            self._deferrals.labels(reason).inc()


def find_roll_result(previous: ProfileStatus, status: ProfileStatus) -> RollResult | None:
    """Return how a rollout ended between two statuses, if one did."""
    if _true_reason(previous, "Progressing") != "Rolling":
        return None
    if previous.desired_hash != status.desired_hash:
        return "superseded"
    if _true_reason(status, "Ready") and not _true_reason(previous, "Ready"):
        return "completed"
    if _is_failure(status) and not _is_failure(previous):
        return "failed"
    return None


def _is_failure(status: ProfileStatus) -> bool:
    # An engine that is busy for long has not failed.
    return _true_reason(status, "Degraded") not in (None, "IdleTimeout")


def find_new_deferral(previous: ProfileStatus, status: ProfileStatus) -> str | None:
    """Return why a rollout is deferred, if it was not, or for another reason."""
    now = _true_reason(status, "RolloutDeferred")
    return None if now == _true_reason(previous, "RolloutDeferred") else now


def _true_reason(status: ProfileStatus, condition_type: ConditionType) -> str | None:
    """Return the reason of a condition that is true."""
    condition = status.find_condition(condition_type)
    return condition.reason if condition is not None and condition.status == "True" else None
