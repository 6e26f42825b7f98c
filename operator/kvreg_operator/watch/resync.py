"""The resync of one namespace: every target is queued, with or without an event.

Owns when the namespace is listed. An event that a watch misses costs at most one resync interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from kvreg_operator.watch.event_sink import EventSink
from kvreg_operator.watch.lists import Lists
from kvreg_operator.watch.liveness import Liveness

# Lists within the limit of the liveness: a single one that fails restarts nothing.
LISTS_PER_LIMIT = 4

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResyncIntervals:
    """How often a namespace is listed, and how often its targets are queued."""

    wake_s: float
    list_s: float


def choose_intervals(resync_s: float, limit_s: float) -> ResyncIntervals:
    """Choose the intervals for a resync setting and the limit of the liveness."""
    return ResyncIntervals(wake_s=resync_s, list_s=min(resync_s, limit_s / LISTS_PER_LIMIT))


class Resync:
    """Lists one namespace again and again. ``clock`` returns monotonic seconds."""

    def __init__(
        self,
        lists: Lists,
        namespace: str,
        sink: EventSink,
        liveness: Liveness,
        clock: Callable[[], float],
        intervals: ResyncIntervals,
    ) -> None:
        self._lists = lists
        self._namespace = namespace
        self._sink = sink
        self._liveness = liveness
        self._clock = clock
        self._intervals = intervals
        self._known: frozenset[str] = frozenset()
        self._woken_s: float | None = None
        self._failure: str | None = None

    async def run(self) -> None:
        """Resync for ever."""
        while True:
            await self.resync()
            await asyncio.sleep(self._intervals.list_s)

    async def resync(self) -> None:
        """List the namespace once, and queue its targets if that is due."""
        listing = await self._lists.read(self._namespace)
        if listing.failure is not None:
            self._liveness.note_failure(self._namespace, listing.failure)
            self._log_change(listing.failure)
            return
        self._liveness.note_success(self._namespace)
        self._sink.take_resync()
        self._log_change(None)
        self._wake(listing.target_names)

    def _log_change(self, failure: str | None) -> None:
        if failure is not None and failure != self._failure:
            _logger.warning("a list of namespace %s failed: %s", self._namespace, failure)
        if failure is None and self._failure is not None:
            _logger.info("the lists of namespace %s succeed again", self._namespace)
        self._failure = failure

    def _wake(self, target_names: frozenset[str]) -> None:
        now_s = self._clock()
        if self._woken_s is not None and now_s - self._woken_s < self._intervals.wake_s:
            return
        self._woken_s = now_s
        # The last reconcile of a target without a profile removes it from the metrics.
        for name in target_names | self._known:
            self._sink.wake(self._namespace, name)
        self._known = target_names
