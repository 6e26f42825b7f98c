"""The round of lists: every profile is looked at, also when no event came.

Owns when everything is listed, and what the lists are good for: they wake targets, and they are
what the watches are judged by. They go on while the watches are broken, so that a deaf operator is
slow and not dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kvreg_operator.cluster_api import PODS, PROFILES, STATEFUL_SETS, ClusterApi
from kvreg_operator.errors import OperatorError
from kvreg_operator.hearing import Hearing
from kvreg_operator.metrics import OperatorMetrics
from kvreg_operator.rendering import Manifest
from kvreg_operator.target_queue import TargetQueue
from kvreg_operator.targets import TargetKey, WatchKind, find_target

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
        self._targets: set[TargetKey] = set()
        self._woken_s: float | None = None
        self._failure: str | None = None

    async def run(self) -> None:
        """Make one round after the other, for ever."""
        while True:
            try:
                await self.list_everything()
            except OperatorError as err:
                # Once per change: the API server may be away for a while.
                if str(err) != self._failure:
                    _logger.warning("a list of the cluster failed: %s", err)
                self._failure = str(err)
            await asyncio.sleep(self._list_s)

    async def list_everything(self) -> None:
        """List everything once, and have every target looked at if it is time.

        Raises:
            OperatorError: The API server did not answer, or refused.
        """
        targets: set[TargetKey] = set()
        agreed: dict[WatchKind, bool] = {}
        for namespace in self._namespaces:
            profiles = await self._api.list_all(PROFILES, namespace)
            found = (find_target("KVRegistryProfile", manifest) for manifest in profiles)
            targets |= {target for target in found if target is not None}
            lists: dict[WatchKind, list[Manifest]] = {
                "KVRegistryProfile": profiles,
                "StatefulSet": await self._api.list_metadata(STATEFUL_SETS, namespace),
                "Pod": await self._api.list_metadata(PODS, namespace),
            }
            for kind, manifests in lists.items():
                has_agreed = self._hearing.listed(kind, namespace, _versions(manifests))
                agreed[kind] = agreed.get(kind, True) and has_agreed
        for kind, has_agreed in agreed.items():
            if has_agreed:
                self._metrics.heard(kind)
        self._hearing.listed_everything()
        if self._failure is not None:
            _logger.info("the lists of the cluster succeed again")
        self._failure = None
        self._wake(targets)

    def _wake(self, targets: set[TargetKey]) -> None:
        now_s = self._clock()
        if self._woken_s is not None and now_s - self._woken_s < self._resync_s:
            return
        self._woken_s = now_s
        # Also those that no profile names any more, so that nothing is shown of them.
        for target in targets | self._targets:
            self._queue.wake(target)
        self._targets = targets


def _versions(manifests: list[Manifest]) -> dict[str, str]:
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in manifests}
