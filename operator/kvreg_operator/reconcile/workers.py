"""The tasks that take targets from the queue and have them looked at.

Owns what a failure means for the time of the next look. A failure of one target delays that one
alone, and none of them ends a worker.
"""

from __future__ import annotations

import logging

from kvreg_operator.clients.errors import Conflict, PermanentError, TemporaryError
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.reconciler import Reconciler
from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue

NUM_WORKERS = 4
# Only a change by a person helps, and that is told; this is for the right that was granted.
AFTER_PERMANENT_S = 60.0
MAX_BACKOFF_S = 60.0

_logger = logging.getLogger(__name__)


class Workers:
    """What the workers share: how often each target has failed in a row."""

    def __init__(
        self, queue: TargetQueue, reconciler: Reconciler, metrics: OperatorMetrics
    ) -> None:
        self.queue = queue
        self._reconciler = reconciler
        self._metrics = metrics
        self._failures: dict[TargetKey, int] = {}

    async def work(self) -> None:
        """Be one worker, for ever."""
        while True:
            target = await self.queue.take()
            try:
                delay_s = await self._look(target)
            finally:
                self.queue.give_back(target)
            if delay_s is not None:
                self.queue.wake(target, delay_s)

    async def _look(self, target: TargetKey) -> float | None:
        try:
            delay_s = await self._reconciler.reconcile(target)
        except Conflict as err:
            # Others write too; the look at what they wrote is due at once.
            self._metrics.reconciled("temporary_error")
            _logger.info("%s: changed since it was looked at: %s", target, err)
            return max(err.delay_s, self._back_off_s(target))
        except TemporaryError as err:
            self._metrics.reconciled("temporary_error")
            delay_s = max(err.delay_s, self._back_off_s(target))
            _logger.warning("%s: %s; trying again in %.0f s", target, err, delay_s)
            return delay_s
        except PermanentError as err:
            self._metrics.reconciled("permanent_error")
            _logger.error("%s: %s", target, err)
            return AFTER_PERMANENT_S
        except Exception:
            # A bug, or an object of a shape that nobody thought of: the other targets go on.
            self._metrics.reconciled("permanent_error")
            _logger.exception("%s: the look failed", target)
            return AFTER_PERMANENT_S
        self._failures.pop(target, None)
        return delay_s

    def _back_off_s(self, target: TargetKey) -> float:
        num_earlier = self._failures.get(target, 0)
        self._failures[target] = num_earlier + 1
        return float(min(2 ** min(num_earlier, 6), MAX_BACKOFF_S))
