"""The engines of one target, queried concurrently.

Owns which pods are queried, how many at once, with which key, and what is logged of those that do
not answer: once per change, because a pod that loads for ten minutes is queried every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from kvreg_operator.clients.engine import (
    EngineClient,
    EngineReport,
    KeyUnreadable,
    NoAddress,
    read_key,
)
from kvreg_operator.observe.containers import Manifest, find_engine_url, has_started

# More pods than a target has whose pods are worth replacing one by one.
MAX_CONCURRENT_QUERIES = 16
# For all engines of a target together. An engine that has not answered by then counts as silent.
TIMEOUT_S = 20.0
RETRY_DELAY_S = 5.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reports:
    """The reports of engines by the uid of the pod, or why none was queried."""

    by_uid: Mapping[str, EngineReport] = field(default_factory=dict)
    key_error: KeyUnreadable | None = None


class Engines:
    """Queries engines by their pods. The owner closes ``http``; the key file is read each time."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        api_key_file: Path | None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._http = http
        self._api_key_file = api_key_file
        self._timeout_s = timeout_s
        self._silent: dict[tuple[str, str], dict[str, str]] = {}

    async def query(
        self,
        target: tuple[str, str],
        container: str,
        settings: Mapping[str, object],
        pods: Iterable[Manifest],
    ) -> Reports:
        """Return the reports of the engines of a target, without silent ones.

        ``target`` is its namespace and name, and the report says whether ``settings`` fit.
        Containers that have not started and pods that terminate are not queried.
        """
        try:
            client = self._client()
        except KeyUnreadable as err:
            return Reports(key_error=err)
        queried = [
            pod
            for pod in pods
            if has_started(pod, container) and "deletionTimestamp" not in pod["metadata"]
        ]
        # One for each target: slow engines of one do not delay the others.
        places = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)
        until_s = asyncio.get_running_loop().time() + self._timeout_s

        async def query_one(pod: Manifest) -> EngineReport | str:
            try:
                async with asyncio.timeout_at(until_s), places:
                    return await client.try_report(_require_url(pod, container), settings)
            except NoAddress as err:
                return str(err)
            except TimeoutError:
                return f"no answer within {self._timeout_s:g} s"

        answers = await asyncio.gather(*map(query_one, queried))
        reports, silent = {}, {}
        for pod, answer in zip(queried, answers, strict=True):
            uid = pod["metadata"]["uid"]
            if isinstance(answer, EngineReport):
                reports[uid] = answer
            else:
                silent[uid] = answer
            self._log_change(target, pod, silent.get(uid))
        self._silent[target] = silent
        return Reports(reports)

    def forget(self, target: tuple[str, str]) -> None:
        """Forget a target that no profile names any more."""
        self._silent.pop(target, None)

    async def drain(self, pod: Manifest, container: str) -> None:
        """Drain the engine of a pod.

        Raises:
            TemporaryError: It has no address, or does not answer now.
            PermanentError: It refuses, or the key cannot be read.
        """
        await self._client().drain(_require_url(pod, container))

    def _log_change(self, target: tuple[str, str], pod: Manifest, failure: str | None) -> None:
        metadata = pod["metadata"]
        before = self._silent.get(target, {}).get(metadata["uid"])
        if failure is None and before is not None:
            _logger.info("the engine of %s/%s answers again", target[0], metadata["name"])
        elif failure is not None and failure != before:
            message = "the engine of %s/%s gives no answer: %s"
            _logger.warning(message, target[0], metadata["name"], failure)

    def _client(self) -> EngineClient:
        if self._api_key_file is None:
            return EngineClient(self._http)
        return EngineClient(self._http, read_key(self._api_key_file))


def _require_url(pod: Manifest, container: str) -> str:
    url = find_engine_url(pod, container)
    if url is None:
        name = pod["metadata"]["name"]
        message = f"pod {name} has no address, or container {container} has no port named http"
        raise NoAddress(message, delay_s=RETRY_DELAY_S)
    return url
