"""A resync wakes every target, and updates the liveness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from tests.operator.cluster_objects import KEY, PROFILE_PATH, clients, put_served
from tests.operator.fake_api import FakeApi
from tests.operator.watch.woken import WokenQueue

from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.watch.event_sink import EventSink
from kvreg_operator.watch.lists import Lists
from kvreg_operator.watch.liveness import Liveness
from kvreg_operator.watch.resync import Resync, choose_intervals

RESYNC_S = 30.0
LIMIT_S = 60.0
KINDS = ("KVRegistryProfile", "StatefulSet", "Pod")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Scene:
    """A resync of one namespace with a fake clock."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = Clock()
        self.queue = WokenQueue()
        self.registry = CollectorRegistry()
        self.metrics = OperatorMetrics(self.registry, self.clock)
        self.liveness = Liveness(self.clock, limit_s=LIMIT_S)
        put_served(self.api)

    def resync_at(
        self, *times_s: float, before: Callable[[float], object] = lambda _: None
    ) -> None:
        async def run() -> None:
            async with clients(self.api) as (cluster, _):
                sink = EventSink(self.queue, self.metrics)
                intervals = choose_intervals(RESYNC_S, LIMIT_S)
                resync = Resync(
                    Lists(cluster), "serving", sink, self.liveness, self.clock, intervals
                )
                for time_s in times_s:
                    before(time_s)
                    self.clock.now_s = time_s
                    await resync.resync()

        asyncio.run(run())

    @property
    def ages_s(self) -> list[float | None]:
        name = "kvreg_operator_watch_age_seconds"
        return [self.registry.get_sample_value(name, {"kind": kind}) for kind in KINDS]


def test_target_is_woken_each_resync_and_not_with_each_list() -> None:
    scene = Scene()
    scene.resync_at(1000, 1015, 1030, 1045, 1060)
    assert scene.queue.targets == [KEY] * 3


def test_target_whose_profile_is_gone_is_woken_once_more() -> None:
    scene = Scene()

    def remove(time_s: float) -> None:
        if time_s == 1030:
            scene.api.remove(PROFILE_PATH)

    scene.resync_at(1000, 1030, 1060, before=remove)
    assert scene.queue.targets == [KEY, KEY]


def test_success_keeps_the_operator_alive_and_every_kind_young() -> None:
    scene = Scene()
    scene.resync_at(1050, 1100)
    assert scene.liveness.find_failure() is None
    assert scene.ages_s == [0, 0, 0]


@pytest.mark.parametrize("plural", ["kvregistryprofiles", "statefulsets", "pods"])
@pytest.mark.parametrize("status", [403, 404, 500])
def test_resync_without_one_of_its_lists_is_none(plural: str, status: int) -> None:
    scene = Scene()
    scene.api.refusals[f"list {plural}"] = status
    scene.resync_at(1030, 1061)
    assert f": {status} " in (scene.liveness.find_failure() or "")
    assert scene.queue.targets == []
    assert scene.ages_s == [61, 61, 61]


def test_lists_that_fail_are_logged_once_and_once_more_when_they_succeed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    caplog.set_level("INFO", logger="kvreg_operator")

    def fail_until(time_s: float) -> None:
        scene.api.refusals = {"list pods": 500} if time_s < 1045 else {}

    scene.resync_at(1000, 1015, 1030, 1045, 1060, before=fail_until)
    ours = [each for each in caplog.records if each.name.startswith("kvreg_operator")]
    first, second = (record.message for record in ours)
    assert first.startswith("a list of namespace serving failed: ")
    assert second == "the lists of namespace serving succeed again"


@pytest.mark.parametrize(
    ("resync_s", "limit_s", "list_s"), [(30, 60, 15), (5, 60, 5), (3600, 60, 15), (30, 3600, 30)]
)
def test_lists_are_often_enough_for_both(resync_s: float, limit_s: float, list_s: float) -> None:
    intervals = choose_intervals(resync_s, limit_s)
    assert (intervals.wake_s, intervals.list_s) == (resync_s, list_s)
