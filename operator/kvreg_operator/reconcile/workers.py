"""The workers: tasks that take targets from the queue and reconcile them.

Owns the delay after a failure. A failure of one target delays only that target, and ends no worker.
"""

from __future__ import annotations

import asyncio
import logging

from kvreg_operator.clients.errors import Conflict, PermanentError, TemporaryError
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.reconciler import Reconciler
from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue

NUM_WORKERS = 4
# Several times what a slow API server and the slowest engines take together. The next reconcile
# continues wherever this one was cancelled.
RECONCILE_TIMEOUT_S = 180.0
# A user has to change something, and most changes cause an event. A right that is granted does not.
AFTER_PERMANENT_S = 60.0
MAX_BACKOFF_S = 60.0

_logger = logging.getLogger(__name__)


class Workers:
    """Runs the workers. They share how often each target has failed in a row."""

    def __init__(
        self, queue: TargetQueue, reconciler: Reconciler, metrics: OperatorMetrics
    ) -> None:
        self.queue = queue
        self._reconciler = reconciler
        self.metrics = metrics
        self._failures: dict[TargetKey, int] = {}

    async def run(self) -> None:
        """Run ``NUM_WORKERS`` workers for ever."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_WORKERS):
                tasks.create_task(self.work())

    async def work(self) -> None:
        """Run one worker for ever."""
        while True:
            target = await self.queue.take()
            try:
                delay_s = await self._reconcile(target)
            finally:
                self.queue.give_back(target)
            if delay_s is not None:
                self.queue.wake(target, delay_s)

    async def _reconcile(self, target: TargetKey) -> float | None:
        try:
            async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                delay_s = await self._reconciler.reconcile(target)
        except Conflict as err:
            # Another client wrote the object, which is no failure.
            self.metrics.reconciled("temporary_error")
            _logger.info("%s: changed since it was observed: %s", target, err)
            return max(err.delay_s, self._back_off_s(target))
        except TemporaryError as err:
            self.metrics.reconciled("temporary_error")
            delay_s = max(err.delay_s, self._back_off_s(target))
            _logger.warning("%s: %s; trying again in %.0f s", target, err, delay_s)
            return delay_s
        except TimeoutError:
            self.metrics.reconciled("temporary_error")
            delay_s = self._back_off_s(target)
            message = "%s: the reconcile took longer than %.0f s; trying again in %.0f s"
            _logger.warning(message, target, RECONCILE_TIMEOUT_S, delay_s)
            return delay_s
        except PermanentError as err:
            self.metrics.reconciled("permanent_error")
            _logger.error("%s: %s", target, err)
            return AFTER_PERMANENT_S
        except Exception:
            # A bug, or an object of an unexpected shape. The other targets are not affected.
            self.metrics.reconciled("permanent_error")
            _logger.exception("%s: the reconcile failed", target)
            return AFTER_PERMANENT_S
        self._failures.pop(target, None)
        return delay_s

    def _back_off_s(self, target: TargetKey) -> float:
        num_earlier = self._failures.get(target, 0)
        self._failures[target] = num_earlier + 1
        return float(min(2 ** min(num_earlier, 6), MAX_BACKOFF_S))
