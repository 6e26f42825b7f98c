"""What the operator's metrics count."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from tests.operator.objects import (
    NOW_S,
    busy_pod,
    make_engine,
    make_pod,
    make_profile,
    observe,
    plan_for,
    unstarted_pod,
)

from kvreg_operator.crd.profile import KVRegistryProfile, ProfileStatus
from kvreg_operator.plan.observation import Observation
from kvreg_operator.reconcile.metrics import OperatorMetrics, find_new_deferral, find_roll_result

OLD = make_profile(registryEntries=1)
NEW = make_profile(generation=2, registryEntries=4)
LOADING = unstarted_pod(0, NEW)
FAILING = unstarted_pod(0, NEW, failure="CrashLoopBackOff")
NEVER = ProfileStatus()


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def status_of(observed: Observation, profile: KVRegistryProfile = NEW) -> ProfileStatus:
    return plan_for(profile, observed, NOW_S).status


ROLLING = status_of(observe(NEW, unstarted_pod(0, OLD)))
LOST = status_of(observe(NEW, LOADING))
SERVED = status_of(observe(NEW, make_pod(0, NEW)))
DEFERRED = status_of(observe(OLD, busy_pod(0, OLD)))


def new_metrics() -> tuple[OperatorMetrics, CollectorRegistry, Clock]:
    registry, clock = CollectorRegistry(), Clock()
    return OperatorMetrics(registry, clock), registry, clock


def test_roll_that_ends_ready_is_completed() -> None:
    assert find_roll_result(ROLLING, SERVED) == "completed"


def test_pod_that_was_lost_and_serves_again_is_no_rollout() -> None:
    assert find_roll_result(LOST, SERVED) is None
    assert find_roll_result(LOST, status_of(observe(NEW, FAILING))) is None


def test_engine_that_is_busy_for_long_is_no_failed_roll() -> None:
    profile = make_profile(generation=2, registryEntries=4, rollout={"idleTimeoutSeconds": 0})
    finishing = make_pod(0, OLD, engine=make_engine(OLD, running=1, is_draining=True))
    late = status_of(observe(NEW, finishing), profile)
    assert find_roll_result(ROLLING, late) is None


def test_roll_that_ends_at_a_failing_pod_has_failed() -> None:
    assert find_roll_result(ROLLING, status_of(observe(NEW, FAILING))) == "failed"


def test_roll_towards_something_else_is_superseded() -> None:
    newer = make_profile(generation=3, registryEntries=5)
    assert find_roll_result(ROLLING, status_of(observe(NEW, LOADING), newer)) == "superseded"


@pytest.mark.parametrize("status", [ROLLING, SERVED, DEFERRED])
def test_nothing_ends_while_nothing_changes(status: ProfileStatus) -> None:
    assert find_roll_result(status, status) is None


def test_deferral_counts_when_it_begins() -> None:
    assert find_new_deferral(NEVER, DEFERRED) == "Busy"


def test_deferral_that_goes_on_does_not_count_again() -> None:
    assert find_new_deferral(DEFERRED, DEFERRED) is None


def test_change_moves_the_counters() -> None:
    metrics, registry, _ = new_metrics()
    metrics.count_change(NEVER, DEFERRED)
    metrics.count_change(ROLLING, SERVED)
    deferrals = registry.get_sample_value("kvreg_operator_deferrals_total", {"reason": "Busy"})
    rolls = registry.get_sample_value("kvreg_operator_rolls_total", {"result": "completed"})
    assert (deferrals, rolls) == (1, 1)


def test_profiles_count_under_their_true_conditions() -> None:
    metrics, registry, _ = new_metrics()
    metrics.show_profiles("a", [SERVED])
    metrics.show_profiles("b", [DEFERRED])
    shown = {
        condition: registry.get_sample_value("kvreg_operator_profiles", {"condition": condition})
        for condition in ("Accepted", "Progressing", "Ready", "Degraded", "RolloutDeferred")
    }
    assert shown == {
        "Accepted": 2,
        "Progressing": 0,
        "Ready": 1,
        "Degraded": 0,
        "RolloutDeferred": 1,
    }


def test_profile_that_is_gone_counts_no_more() -> None:
    metrics, registry, _ = new_metrics()
    metrics.show_profiles("a", [SERVED])
    metrics.show_profiles("a", [])
    assert registry.get_sample_value("kvreg_operator_profiles", {"condition": "Ready"}) == 0


def test_age_of_a_kind_grows_until_an_event_or_a_list_arrives() -> None:
    metrics, registry, clock = new_metrics()
    ages = []
    for later_s in (200.0, 260.0):
        clock.now_s = later_s
        ages.append(registry.get_sample_value("kvreg_operator_watch_age_seconds", {"kind": "Pod"}))
        metrics.note_seen("Pod")
    assert ages == [100.0, 60.0]


def test_reconciles_count_by_result() -> None:
    metrics, registry, _ = new_metrics()
    metrics.reconciled("changed")
    value = registry.get_sample_value("kvreg_operator_reconciles_total", {"result": "changed"})
    assert value == 1
