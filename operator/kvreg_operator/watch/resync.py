"""The round of lists: every profile is looked at, also when no event came.

Owns when everything is listed, and what the lists are good for: they wake targets, and they are
what the watches are judged by. They go on while the watches are broken, so that a deaf operator is
slow and not dead, and in each namespace whatever another one answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kvreg_operator.clients.api_server import PODS, PROFILES, STATEFUL_SETS, ClusterApi
from kvreg_operator.clients.errors import OperatorError, PermanentError
from kvreg_operator.reconcile.metrics import OperatorMetrics, WatchKind
from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue
from kvreg_operator.watch.hearing import Hearing
from kvreg_operator.watch.targets import find_target

# Lists in the time that a watch has to tell: what they miss of it, the verdict comes later.
LISTS_PER_VERDICT = 4

_logger = logging.getLogger(__name__)


class Resync:
    """Lists all watched kinds of all namespaces. ``clock`` returns monotonic seconds."""

    def __init__(
        self,
        api: ClusterApi,
        namespaces: Sequence[str],
        hearing: Hearing,
        queue: TargetQueue,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
        *,
        resync_s: float,
        deaf_after_s: float,
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._hearing = hearing
        self._queue = queue
        self._metrics = metrics
        self._clock = clock
        self._resync_s = resync_s
        self._list_s = min(resync_s, deaf_after_s / LISTS_PER_VERDICT)
        self._targets: dict[str, set[TargetKey]] = {}
        self._woken_s: float | None = None
        self._failures: dict[str, str] = {}

    async def run(self) -> None:
        """Make one round after the other, for ever."""
        while True:
            await self.list_everything()
            await asyncio.sleep(self._list_s)

    async def list_everything(self) -> None:
        """List everything once, and have every target looked at if it is time."""
        targets: dict[str, set[TargetKey]] = {}
        agreed: dict[WatchKind, bool] = {}
        for namespace in self._namespaces:
            try:
                targets[namespace], lists = await self._list(namespace)
            except OperatorError as err:
                self._note_failure(namespace, err)
                continue
            if self._failures.pop(namespace, None) is not None:
                _logger.info("the lists of namespace %s succeed again", namespace)
            for kind, versions in lists.items():
                has_agreed = self._hearing.listed(kind, namespace, versions)
                agreed[kind] = agreed.get(kind, True) and has_agreed
        for kind, has_agreed in agreed.items():
            if has_agreed:
                self._metrics.heard(kind)
        if targets:
            self._hearing.listed_anything()
        self._wake(targets)

    async def _list(self, namespace: str) -> tuple[set[TargetKey], dict[WatchKind, dict[str, str]]]:
        """Return the targets that profiles name, and the versions of all objects by their kind."""
        targets: set[TargetKey] = set()
        profiles: dict[str, str] = {}
        async for manifest in self._api.each(PROFILES, namespace):
            metadata = manifest["metadata"]
            profiles[metadata["uid"]] = metadata["resourceVersion"]
            if (target := find_target("KVRegistryProfile", manifest)) is not None:
                targets.add(target)
        return targets, {
            "KVRegistryProfile": profiles,
            "StatefulSet": await self._api.list_versions(STATEFUL_SETS, namespace),
            "Pod": await self._api.list_versions(PODS, namespace),
        }

    def _note_failure(self, namespace: str, err: OperatorError) -> None:
        if isinstance(err, PermanentError):
            # As with its Role: what its watches owed, nobody can tell any more.
            self._hearing.forget(namespace)
        # Once per change: the API server may be away for a while.
        if str(err) != self._failures.get(namespace):
            _logger.warning("a list of namespace %s failed: %s", namespace, err)
        self._failures[namespace] = str(err)

    def _wake(self, targets: dict[str, set[TargetKey]]) -> None:
        now_s = self._clock()
        if self._woken_s is not None and now_s - self._woken_s < self._resync_s:
            return
        self._woken_s = now_s
        for namespace, found in targets.items():
            # Also those that no profile names any more, so that nothing is shown of them.
            for target in found | self._targets.get(namespace, set()):
                self._queue.wake(target)
        self._targets |= targets
