"""Lists wake every target in their time, and judge the watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from tests.operator.cluster_objects import KEY, PROFILE_PATH, clients, put_served
from tests.operator.fake_api import FakeApi

from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue
from kvreg_operator.watch.hearing import Hearing, WatchedObject
from kvreg_operator.watch.resync import Resync

RESYNC_S = 30.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Woken(TargetQueue):
    """A queue that keeps who was woken."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.targets: list[TargetKey] = []

    def wake(self, target: TargetKey, delay_s: float = 0.0) -> None:
        self.targets.append(target)
        super().wake(target, delay_s)


class Round:
    """Everything around a resync, with time to be set."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = Clock()
        self.queue = Woken()
        self.registry = CollectorRegistry()
        self.metrics = OperatorMetrics(self.registry, self.clock)
        self.hearing = Hearing(self.clock, deaf_after_s=60, silent_after_s=120)
        put_served(self.api)

    def list_at(
        self,
        *times_s: float,
        before: Callable[[float], object] = lambda _: None,
        namespaces: tuple[str, ...] = ("serving",),
    ) -> None:
        async def run() -> None:
            async with clients(self.api) as (cluster, _):
                resync = Resync(
                    cluster,
                    namespaces,
                    self.hearing,
                    self.queue,
                    self.metrics,
                    self.clock,
                    resync_s=RESYNC_S,
                    deaf_after_s=60,
                )
                for time_s in times_s:
                    before(time_s)
                    self.clock.now_s = time_s
                    await resync.list_everything()

        asyncio.run(run())

    def tell_everything(self) -> None:
        """Do what the watches do."""
        kinds = {"kvregistryprofiles": "KVRegistryProfile", "statefulsets": "StatefulSet"}
        for path, manifest in self.api.objects.items():
            plural = path.split("/")[-2]
            if plural != "configmaps":
                metadata = manifest["metadata"]
                kind = kinds.get(plural, "Pod")
                it = WatchedObject(kind, "serving", metadata["uid"])  # type: ignore[arg-type]
                self.hearing.told(it, metadata["resourceVersion"])

    def age_of(self, kind: str) -> float | None:
        return self.registry.get_sample_value("kvreg_operator_watch_age_seconds", {"kind": kind})


def test_target_is_woken_each_resync_and_not_with_each_list() -> None:
    it = Round()
    it.list_at(1000, 1015, 1030, 1045, 1060)
    assert it.queue.targets == [KEY] * 3


def test_target_whose_profile_is_gone_is_woken_once_more() -> None:
    it = Round()

    def remove(time_s: float) -> None:
        if time_s == 1030:
            it.api.remove(PROFILE_PATH)

    it.list_at(1000, 1030, 1060, before=remove)
    assert it.queue.targets == [KEY, KEY]


def test_watch_that_told_everything_does_not_age() -> None:
    it = Round()
    it.tell_everything()
    it.list_at(1500)
    assert [it.age_of(kind) for kind in ("KVRegistryProfile", "StatefulSet", "Pod")] == [0, 0, 0]


def test_watch_that_told_nothing_ages_and_is_deaf() -> None:
    it = Round()
    it.list_at(1000, 1061)
    assert it.age_of("Pod") == 61
    assert it.hearing.find_deafness() is not None


def test_list_that_fails_is_said_once_and_nothing_is_judged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = Round()
    it.api.refusals["list pods"] = 500
    it.list_at(1000, 1030, 1121)
    assert it.queue.targets == []
    assert len(caplog.records) == 1
    assert "no complete list" in (it.hearing.find_deafness() or "")


def test_namespace_that_is_lost_takes_nothing_from_the_others() -> None:
    it = Round()
    it.hearing.told(WatchedObject("Pod", "lost", "uid"), "1")
    it.api.lost_namespaces.add("lost")
    it.tell_everything()
    it.list_at(1000, 1030, 1200, namespaces=("lost", "serving"))
    assert it.queue.targets == [KEY] * 3
    assert it.hearing.find_deafness() is None
