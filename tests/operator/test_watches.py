"""What Kopf does with watches that fail, on which the operator relies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import kopf
from prometheus_client import CollectorRegistry
from tests.operator.cluster_objects import POD_PATH, put_pod, put_profile, put_target
from tests.operator.fake_api import FakeApi

from kvreg_operator.handlers import Ears, build_kopf_settings, build_registry
from kvreg_operator.hearing import Hearing, WatchedObject
from kvreg_operator.metrics import OperatorMetrics
from kvreg_operator.target_queue import TargetQueue

TIMEOUT_S = 20.0


class Told(Hearing):
    """Hearing that counts."""

    num_told = 0

    def told(self, it: WatchedObject, version: str) -> None:
        super().told(it, version)
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
            settings = build_kopf_settings()
            settings.networking.error_backoffs = (0.01, 0.01)
            task = asyncio.create_task(
                kopf.operator(
                    registry=build_registry(ears, login),
                    settings=settings,
                    namespaces=["serving"],
                )
            )
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await story(told, task)
            finally:
                task.cancel()
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
