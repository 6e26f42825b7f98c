"""An event wakes the target that it concerns."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from tests.operator.watch.woken import WokenQueue

from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.target_queue import TargetKey
from kvreg_operator.watch.event_sink import EventSink, find_target

A = TargetKey("serving", "a")


def test_profile_wakes_the_target_that_it_names() -> None:
    manifest = {"metadata": {"namespace": "serving"}, "spec": {"targetRef": {"name": "a"}}}
    assert find_target("KVRegistryProfile", manifest) == A


def test_stateful_set_wakes_itself() -> None:
    assert find_target("StatefulSet", {"metadata": {"namespace": "serving", "name": "a"}}) == A


def test_pod_wakes_its_stateful_set() -> None:
    owner = {"kind": "StatefulSet", "name": "a", "controller": True}
    manifest = {"metadata": {"namespace": "serving", "name": "a-0", "ownerReferences": [owner]}}
    assert find_target("Pod", manifest) == A


def test_pod_of_another_controller_wakes_nothing() -> None:
    owner = {"kind": "ReplicaSet", "name": "a", "controller": True}
    manifest = {"metadata": {"namespace": "serving", "name": "a-0", "ownerReferences": [owner]}}
    assert find_target("Pod", manifest) is None


@pytest.mark.parametrize("spec", [None, {}, {"targetRef": "a"}, {"targetRef": {"name": 1}}, "a"])
def test_profile_of_another_shape_wakes_nothing(spec: object) -> None:
    manifest = {"metadata": {"namespace": "serving"}, "spec": spec}
    assert find_target("KVRegistryProfile", manifest) is None


def test_event_wakes_and_is_seen() -> None:
    registry, now_s = CollectorRegistry(), 100.0
    queue = WokenQueue()
    sink = EventSink(queue, OperatorMetrics(registry, lambda: now_s))
    now_s = 160.0
    sink.take_event("StatefulSet", {"metadata": {"namespace": "serving", "name": "a"}})
    ages = {
        kind: registry.get_sample_value("kvreg_operator_watch_age_seconds", {"kind": kind})
        for kind in ("StatefulSet", "Pod")
    }
    assert queue.targets == [A]
    assert ages == {"StatefulSet": 0, "Pod": 60}
