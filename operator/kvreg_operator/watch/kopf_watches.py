"""The watches of all namespaces, those of each in a thread of its own.

Owns that a namespace which is lost, as with its Role, does not take the others with it. Kopf ends
as a whole when one of its watches is refused for good, and at its end it cancels whatever tasks
there are beside it. So it runs once for each namespace, in a loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import kopf

from kvreg_operator.clients.api_server import PROFILES, ClusterApi
from kvreg_operator.clients.errors import OperatorError
from kvreg_operator.crd.profile import FIELD_MANAGER
from kvreg_operator.reconcile.metrics import WatchKind
from kvreg_operator.watch.handlers import Ears, Login, build_kopf_settings, build_registry

# With the time that Kopf takes to give up, well within two minutes.
RETRY_S = 30.0

_logger = logging.getLogger(__name__)


class Watches:
    """Watches namespaces, and remembers which of them it has lost, and why."""

    def __init__(
        self,
        api: ClusterApi,
        namespaces: Collection[str],
        ears: Ears,
        *,
        login: Login = kopf.login_via_async_client,
        build_settings: Callable[[], kopf.OperatorSettings] = build_kopf_settings,
        retry_s: float = RETRY_S,
    ) -> None:
        self._api = api
        self._ears = ears
        self._login = login
        self._build_settings = build_settings
        self._retry_s = retry_s
        self._watched = set(namespaces)
        self._failures: dict[str, str] = {}

    async def watch(self, namespace: str) -> None:
        """Watch a namespace for ever; begin anew where that fails and another one is watched.

        Raises:
            Exception: It failed, and no other namespace is watched.
        """
        while True:
            failure: BaseException
            try:
                # Kopf takes longer to notice what it may not list.
                await self._api.list_versions(PROFILES, namespace)
            except OperatorError as err:
                failure = err
            else:
                self._watched.add(namespace)
                failure = await self._run_kopf(namespace)
            self._watched.discard(namespace)
            # Nothing is owed by a watch that is known to be broken.
            self._ears.hearing.forget(namespace)
            if not self._watched:
                raise failure
            self._complain(namespace, failure)
            await asyncio.sleep(self._retry_s)

    async def _run_kopf(self, namespace: str) -> BaseException:
        """Run Kopf until it fails, and return why."""
        loop, stop = asyncio.get_running_loop(), threading.Event()

        def hear(kind: WatchKind, event: Any) -> None:
            loop.call_soon_threadsafe(self._ears.hear, kind, event)

        async def operate() -> None:
            try:
                await kopf.operator(
                    registry=build_registry(hear, self._login),
                    settings=self._build_settings(),
                    namespaces=[namespace],
                    # Otherwise it asks who the user is, which fails for a number without a name.
                    identity=cast(Any, FIELD_MANAGER),
                    stop_flag=stop,
                )
            finally:
                # A thread of Kopf's waits for it, and the loop for that thread.
                stop.set()

        with ThreadPoolExecutor(1, thread_name_prefix=f"watches-{namespace}") as threads:
            ended = loop.run_in_executor(threads, lambda: asyncio.run(operate()))
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                stop.set()
                await asyncio.wait([ended])
                raise
        return ended.exception() or RuntimeError("Kopf has ended by itself")

    def _complain(self, namespace: str, failure: BaseException) -> None:
        said = f"{type(failure).__name__}: {failure}"
        if said != self._failures.get(namespace):
            message = "namespace %s is not watched, and is tried again each %.0f s: %s"
            _logger.error(message, namespace, self._retry_s, said)
        self._failures[namespace] = said
