"""The watches of one namespace, in a thread of their own.

Owns the restart of Kopf. Kopf ends as a whole when one of its watches is refused, and cancels all
tasks of its loop. So each namespace has its own Kopf in its own loop: one that is refused does not
affect the others. Meanwhile the resync queues the targets.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import kopf

from kvreg_operator.watch.event_sink import EventSink
from kvreg_operator.watch.kopf_setup import Login, build_kopf_settings, build_registry
from kvreg_operator.watch.lists import Lists

RETRY_S = 30.0
_IDENTITY = "kvreg-operator"

_logger = logging.getLogger(__name__)


class KopfWatches:
    """Watches one namespace. It remembers the last failure that it logged."""

    def __init__(
        self,
        lists: Lists,
        namespace: str,
        sink: EventSink,
        *,
        login: Login = kopf.login_via_async_client,
        build_settings: Callable[[], kopf.OperatorSettings] = build_kopf_settings,
        retry_s: float = RETRY_S,
    ) -> None:
        self._lists = lists
        self._namespace = namespace
        self._sink = sink
        self._login = login
        self._build_settings = build_settings
        self._retry_s = retry_s
        self._failure: str | None = None

    async def run(self) -> None:
        """Watch for ever; start again after ``retry_s`` when Kopf ends."""
        while True:
            # Kopf takes some 20 s to give up a namespace that may not be listed.
            failure = (await self._lists.read(self._namespace)).failure
            if failure is None:
                failure = await self._run_kopf()
            self._log(failure)
            await asyncio.sleep(self._retry_s)

    async def _run_kopf(self) -> str:
        """Run Kopf until it ends, and return why."""
        loop = asyncio.get_running_loop()

        def take_event(*event: Any) -> None:
            loop.call_soon_threadsafe(self._sink.take_event, *event)

        async def operate() -> None:
            await kopf.operator(
                registry=build_registry(take_event, self._login),
                settings=self._build_settings(),
                namespaces=[self._namespace],
                # By default Kopf looks up the name of the user, who may have none.
                identity=cast(Any, _IDENTITY),
            )

        err = await run_in_thread(operate, f"watches-{self._namespace}")
        return "Kopf has ended" if err is None else f"{type(err).__name__}: {err}"

    def _log(self, failure: str) -> None:
        if failure != self._failure:
            message = "namespace %s is not watched, and is tried again each %.0f s: %s"
            _logger.error(message, self._namespace, self._retry_s, failure)
        self._failure = failure


async def run_in_thread(
    make: Callable[[], Coroutine[Any, Any, None]], name: str
) -> BaseException | None:
    """Run a coroutine in a thread and a loop of its own; return the exception that ended it.

    Effects: a cancellation cancels the coroutine, and waits for its end.
    """
    is_cancelled = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def run() -> None:
        task = asyncio.ensure_future(make())
        running.append((asyncio.get_running_loop(), task))
        if is_cancelled.is_set():
            task.cancel()
        await task

    threads = ThreadPoolExecutor(1, thread_name_prefix=name)
    ended = asyncio.get_running_loop().run_in_executor(threads, lambda: asyncio.run(run()))
    try:
        await asyncio.wait([ended])
    except asyncio.CancelledError:
        is_cancelled.set()
        for loop, task in running:
            # The loop may be closed by now.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([ended])
        # Or asyncio logs that it was never retrieved.
        ended.exception()
        raise
    finally:
        # Not joined here: a second cancellation would block the loop until the thread ends.
        threads.shutdown(wait=False)
    return ended.exception()
