"""What Kopf does with watches that fail, on which the operator relies."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import kopf
import pytest
from prometheus_client import CollectorRegistry
from tests.operator.cluster_objects import POD_PATH, clients, put_pod, put_profile, put_target
from tests.operator.fake_api import FakeApi, path_of

from kvreg_operator.clients.errors import PermanentError
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.target_queue import TargetQueue
from kvreg_operator.watch.handlers import Ears, build_kopf_settings, build_registry
from kvreg_operator.watch.hearing import Hearing, WatchedObject
from kvreg_operator.watch.watches import Watches

TIMEOUT_S = 20.0

# Kopf leaves a session open when one of its watches fails.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def sessions_end_here() -> Iterator[None]:
    """Have what Kopf left open found in the test that left it, and not in a later one."""
    yield
    gc.collect()


class Told(Hearing):
    """Hearing that counts."""

    num_told = 0

    def told(self, it: WatchedObject, version: str, *, by_listing: bool = False) -> None:
        super().told(it, version, by_listing=by_listing)
        self.num_told += 1


def watch(
    api: FakeApi,
    story: Callable[[Told, asyncio.Task[None]], Awaitable[None]],
) -> None:
    """Run Kopf with the operator's handlers, and a story beside it."""

    async def login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=api.url)

    async def play() -> None:
        async with api.serve():
            told = Told(lambda: 0.0, deaf_after_s=60, silent_after_s=60)
            metrics = OperatorMetrics(CollectorRegistry(), lambda: 0.0)
            ears = Ears(told, TargetQueue(lambda: 0.0), metrics)
            stop = asyncio.Event()
            task = asyncio.create_task(
                kopf.operator(
                    registry=build_registry(ears.hear, login),
                    settings=impatient(),
                    namespaces=["serving"],
                    stop_flag=stop,
                )
            )
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await story(told, task)
            finally:
                stop.set()
                await asyncio.gather(task, return_exceptions=True)

    put_profile(api)
    put_target(api)
    put_pod(api)
    asyncio.run(play())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is on the other side of HTTP
        await asyncio.sleep(0.01)


def end_with(refusals: dict[str, int], code_in_stream: int | None = None) -> BaseException | None:
    """Return what Kopf ends with where requests are refused, or watches get an error."""
    api = FakeApi()
    api.refusals.update(refusals)
    ends: list[BaseException | None] = []

    async def story(told: Told, task: asyncio.Task[None]) -> None:
        if code_in_stream is not None:
            await until(lambda: told.num_told == 3)
            api.send_error("pods", code_in_stream)
        await asyncio.wait([task])
        ends.append(task.exception())

    watch(api, story)
    return ends[0]


def test_watch_that_fails_for_good_ends_kopf() -> None:
    refusals = [
        {f"{verb} pods": status} for verb in ("list", "watch") for status in (403, 404, 500)
    ]
    # Kopf takes five seconds to end, in each case.
    with ThreadPoolExecutor(max_workers=len(refusals) + 1) as threads:
        in_stream = threads.submit(end_with, {}, 500)
        ends = [*threads.map(end_with, refusals), in_stream.result()]
    assert [type(end).__name__ for end in ends] == [
        *("APIForbiddenError", "APINotFoundError", "APIServerError") * 2,
        "WatchingError",
    ]


def test_watch_that_is_too_old_lists_again() -> None:
    api = FakeApi()

    async def story(told: Told, task: asyncio.Task[None]) -> None:
        await until(lambda: told.num_told == 3)
        api.send_error("pods", 410)
        await until(lambda: told.num_told == 4)
        assert not task.done()

    watch(api, story)


def test_end_that_falls_into_a_gap_of_the_watch_is_not_owed() -> None:
    api = FakeApi()
    lost = path_of("pods", "lost")

    async def story(told: Told, task: asyncio.Task[None]) -> None:
        await until(lambda: told.num_told == 4)
        api.deaf.add("pods")
        api.remove(lost)
        api.deaf.clear()
        api.send_error("pods", 410)
        await until(lambda: told.num_told == 5)
        pod = api.objects[POD_PATH]["metadata"]
        assert told.listed("Pod", "serving", {pod["uid"]: pod["resourceVersion"]})
        assert not task.done()

    api.put(lost, {"metadata": {}, "spec": {"containers": []}})
    watch(api, story)


def test_connection_that_is_lost_is_made_again() -> None:
    api = FakeApi()

    async def story(told: Told, task: asyncio.Task[None]) -> None:
        await until(lambda: told.num_told == 3)
        num_watches = sum(request.is_watch for request in api.requests)
        api.end_watches()
        await until(lambda: sum(r.is_watch for r in api.requests) >= num_watches + 3)
        put_pod(api)
        await until(lambda: told.num_told == 4)
        assert not task.done()

    watch(api, story)


def impatient() -> kopf.OperatorSettings:
    settings = build_kopf_settings()
    settings.networking.error_backoffs = (0.01, 0.01)
    return settings


def test_namespace_that_is_lost_and_found_does_not_stop_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = FakeApi()

    async def login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=api.url)

    def begun(namespace: str) -> int:
        return sum(r.is_watch and f"/{namespace}/" in r.path for r in api.requests)

    async def play() -> None:
        async with clients(api) as (cluster, _):
            told = Told(lambda: 0.0, deaf_after_s=60, silent_after_s=60)
            metrics = OperatorMetrics(CollectorRegistry(), lambda: 0.0)
            ears = Ears(told, TargetQueue(lambda: 0.0), metrics)
            namespaces = ("lost", "serving")
            watches = Watches(
                cluster, namespaces, ears, login=login, build_settings=impatient, retry_s=0.05
            )
            tasks = [asyncio.create_task(watches.watch(each)) for each in namespaces]
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await until(lambda: told.num_told == 3 and begun("lost") == 3)
                    api.lost_namespaces.add("lost")
                    api.end_watches()
                    await until(lambda: "namespace lost is not watched" in caplog.text)
                    num_told = told.num_told
                    put_pod(api)
                    await until(lambda: told.num_told > num_told)
                    num_begun = begun("lost")
                    api.lost_namespaces.clear()
                    await until(lambda: begun("lost") >= num_begun + 3)
                    assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    put_profile(api)
    put_target(api)
    put_pod(api)
    asyncio.run(play())


def test_last_namespace_that_is_lost_ends_the_watches() -> None:
    api = FakeApi()
    api.lost_namespaces.add("serving")

    async def play() -> None:
        async with clients(api) as (cluster, _):
            told = Told(lambda: 0.0, deaf_after_s=60, silent_after_s=60)
            metrics = OperatorMetrics(CollectorRegistry(), lambda: 0.0)
            ears = Ears(told, TargetQueue(lambda: 0.0), metrics)
            await Watches(cluster, ["serving"], ears).watch("serving")

    with pytest.raises(PermanentError, match="403"):
        asyncio.run(play())


def test_nothing_is_written_to_what_is_watched() -> None:
    api = FakeApi()

    async def story(told: Told, _: asyncio.Task[None]) -> None:
        await until(lambda: told.num_told == 3)
        # The marks of another operator that is made with Kopf.
        finalizers = ["kopf.zalando.org/KopfFinalizerMarker"]
        annotations = {"kopf.zalando.org/last-handled-configuration": "no JSON at all"}
        put_pod(api, finalizers=finalizers, annotations=annotations)
        await until(lambda: told.num_told == 4)
        api.remove(POD_PATH)
        put_pod(api)
        await until(lambda: told.num_told == 5)

    watch(api, story)
    assert api.writes == []
