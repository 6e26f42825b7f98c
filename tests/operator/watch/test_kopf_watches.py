"""What Kopf does with failing watches, and that it is started again when it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import kopf
import pytest
from prometheus_client import CollectorRegistry
from tests.operator.cluster_objects import POD_PATH, clients, put_pod, put_profile, put_target
from tests.operator.fake_api import FakeApi
from tests.operator.watch.woken import WokenQueue

from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.watch.event_sink import EventSink
from kvreg_operator.watch.kopf_setup import build_kopf_settings, build_registry
from kvreg_operator.watch.kopf_watches import KopfWatches
from kvreg_operator.watch.lists import Lists

TIMEOUT_S = 60.0

pytestmark = [
    pytest.mark.slow(reason="waits for Kopf to end, which takes it up to five seconds"),
    # Kopf leaves a session open when one of its watches fails.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def sessions_end_here() -> Iterator[None]:
    """Collect open sessions here, so that a later test does not get their warnings."""
    yield
    gc.collect()


class Events:
    """A sink, and how many events it has taken: each of them wakes the one target."""

    def __init__(self) -> None:
        self.queue = WokenQueue()
        metrics = OperatorMetrics(CollectorRegistry(), lambda: 0.0)
        self.sink = EventSink(self.queue, metrics)

    @property
    def number(self) -> int:
        return len(self.queue.targets)


def impatient() -> kopf.OperatorSettings:
    settings = build_kopf_settings()
    settings.networking.error_backoffs = (0.01, 0.01)
    return settings


def new_api() -> FakeApi:
    api = FakeApi()
    put_profile(api)
    put_target(api)
    put_pod(api)
    return api


def num_watches(api: FakeApi, namespace: str = "serving") -> int:
    return sum(each.is_watch and f"/{namespace}/" in each.path for each in api.requests)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is on the other side of HTTP
        await asyncio.sleep(0.01)


def run_kopf(
    api: FakeApi,
    story: Callable[[Events, asyncio.Task[None]], Awaitable[None]],
    build_settings: Callable[[], kopf.OperatorSettings] = impatient,
) -> None:
    """Run Kopf with the handlers of the operator, and a story beside it."""

    async def login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=api.url)

    async def play() -> None:
        async with api.serve():
            events = Events()
            task = asyncio.create_task(
                kopf.operator(
                    registry=build_registry(events.sink.take_event, login),
                    settings=build_settings(),
                    namespaces=["serving"],
                )
            )
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await story(events, task)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())


@asynccontextmanager
async def running_watches(api: FakeApi, *namespaces: str) -> AsyncIterator[Events]:
    """Run the operator's watches of namespaces, which must not end."""

    async def login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=api.url)

    async with clients(api) as (cluster, _):
        events, lists = Events(), Lists(cluster)
        tasks = [
            asyncio.create_task(
                KopfWatches(
                    lists,
                    namespace,
                    events.sink,
                    login=login,
                    build_settings=impatient,
                    retry_s=0.05,
                ).run()
            )
            for namespace in namespaces
        ]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield events
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def end_with(refusals: dict[str, int], code_in_stream: int | None = None) -> BaseException | None:
    """Return the exception of Kopf where requests are refused, or watches get an ERROR."""
    api = new_api()
    api.refusals.update(refusals)
    ends: list[BaseException | None] = []

    async def story(events: Events, task: asyncio.Task[None]) -> None:
        if code_in_stream is not None:
            await until(lambda: events.number == 3)
            api.send_error("pods", code_in_stream)
        await asyncio.wait([task])
        ends.append(task.exception())

    run_kopf(api, story)
    return ends[0]


def test_watch_that_is_refused_ends_kopf() -> None:
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
    api = new_api()

    async def story(events: Events, task: asyncio.Task[None]) -> None:
        await until(lambda: events.number == 3)
        api.send_error("pods", 410)
        await until(lambda: events.number == 4)
        assert not task.done()

    run_kopf(api, story)


def test_connection_that_is_lost_is_made_again() -> None:
    api = new_api()

    async def story(events: Events, task: asyncio.Task[None]) -> None:
        await until(lambda: events.number == 3)
        before = num_watches(api)
        api.end_watches()
        await until(lambda: num_watches(api) >= before + 3)
        put_pod(api)
        await until(lambda: events.number == 4)
        assert not task.done()

    run_kopf(api, story)


def test_watch_that_is_silent_is_made_again() -> None:
    api = new_api()

    def restless() -> kopf.OperatorSettings:
        settings = impatient()
        settings.watching.inactivity_timeout = 0.1
        return settings

    async def story(_: Events, task: asyncio.Task[None]) -> None:
        await until(lambda: num_watches(api) >= 9)
        assert not task.done()

    run_kopf(api, story, restless)


@pytest.mark.parametrize(("verb", "status"), [("watch", 500), ("list", 403)])
def test_kopf_that_ended_is_started_again(
    verb: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    api = new_api()

    async def play() -> None:
        async with running_watches(api, "serving") as events:
            await until(lambda: events.number == 3 and num_watches(api) == 3)
            api.refusals[f"{verb} pods"] = status
            api.send_error("pods", 410)
            await until(lambda: "namespace serving is not watched" in caplog.text)
            api.refusals.clear()
            before = num_watches(api)
            await until(lambda: num_watches(api) >= before + 3)
            number = events.number
            put_pod(api)
            await until(lambda: events.number > number)

    asyncio.run(play())


def test_namespace_that_is_lost_and_found_does_not_stop_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = new_api()

    async def play() -> None:
        async with running_watches(api, "lost", "serving") as events:
            await until(lambda: events.number == 3 and num_watches(api, "lost") == 3)
            api.lost_namespaces.add("lost")
            api.end_watches()
            await until(lambda: "namespace lost is not watched" in caplog.text)
            number = events.number
            put_pod(api)
            await until(lambda: events.number > number)
            before = num_watches(api, "lost")
            api.lost_namespaces.clear()
            await until(lambda: num_watches(api, "lost") >= before + 3)

    asyncio.run(play())


def test_nothing_is_written_to_what_is_watched() -> None:
    api = new_api()

    async def story(events: Events, _: asyncio.Task[None]) -> None:
        await until(lambda: events.number == 3)
        # The finalizer and the annotation of another operator that uses Kopf.
        finalizers = ["kopf.zalando.org/KopfFinalizerMarker"]
        annotations = {"kopf.zalando.org/last-handled-configuration": "no JSON at all"}
        put_pod(api, finalizers=finalizers, annotations=annotations)
        await until(lambda: events.number == 4)
        api.remove(POD_PATH)
        put_pod(api)
        await until(lambda: events.number == 6)

    run_kopf(api, story)
    assert api.writes == []
