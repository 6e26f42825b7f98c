"""The step loop: schedule, run, commit, over and over, on a thread of its own.

Owns the thread and the lock. The lock guards the scheduler's bookkeeping and is never held while
the model computes, so callers wait for microseconds. Cancellations wait for the next step: between
two steps the state of a running request is consistent, within one it is not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from kvreg_service.core.errors import Conflict, EngineDown, KvregError
from kvreg_service.core.events import Event
from kvreg_service.core.ids import RequestId
from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.engine.loop.runner import Runner
from kvreg_service.engine.output.processor import OutputProcessor
from kvreg_service.engine.output.stream import OutputStream
from kvreg_service.engine.reporting.reporter import EventReporter

_logger = logging.getLogger(__name__)

_PAUSE_S = 0.02


class StepLoop:
    """Runs steps while there is work, until it is closed.

    ``lock`` is for callers who read or change the scheduler, which they may do between two steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        output: OutputProcessor,
        reporter: EventReporter,
    ) -> None:
        self.lock = threading.Lock()
        self._scheduler = scheduler
        self._runner = runner
        self._output = output
        self._reporter = reporter
        self._wake = threading.Condition(self.lock)
        self._cancelled: list[RequestId] = []
        self._is_closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="kvreg-step-loop", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once the loop has ended."""
        return self._thread.is_alive() and self._failure is None

    @property
    def is_closing(self) -> bool:
        """True once `close` was called."""
        return self._is_closing

    def submit(self, stream: OutputStream) -> None:
        """Queue a request, whose output goes to ``stream``. The caller holds the lock.

        Raises:
            Conflict: a request of the same id is in flight.
            InvalidRequest, ContextTooLong, Overloaded: see `Scheduler.submit`.
        """
        request = stream.request
        if request.request_id in self._output:
            raise Conflict(
                f"request_id {request.request_id!r} is that of a request that still runs",
                request_id=request.request_id,
            )
        self._runner.begin(request)
        try:
            self._scheduler.submit(request)
        except KvregError:
            self._runner.forget(request.request_id)
            raise
        self._output.add(stream)
        self._wake.notify()

    def cancel(self, stream: OutputStream) -> None:
        """Cancel a request before the next step, unless it has ended."""
        with self.lock:
            if not stream.has_ended:
                self._cancelled.append(stream.request.request_id)
                self._wake.notify()

    def wake(self) -> None:
        """Look again when the next session expires. The caller holds the lock."""
        self._wake.notify()

    def close(self) -> None:
        """End the loop and join its thread. Requests in flight fail. Idempotent."""
        with self.lock:
            self._is_closing = True
            self._wake.notify()
        self._thread.join()

    # On the loop's own thread.

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
        except BaseException as error:
            _logger.critical("the step loop has ended: %r", error, exc_info=True)
            self._failure = error
        finally:
            with self.lock:
                self._output.fail_all(EngineDown("the step loop has ended while the request ran"))
            self._output.deliver()

    def _step(self) -> None:
        plan = self._schedule()
        result = self._run(plan)
        self._commit(plan, result)

    def _schedule(self) -> StepPlan:
        now_s = time.monotonic()
        with self.lock:
            for request_id in self._cancelled:
                self._publish(self._scheduler.cancel(request_id, now_s))
            self._cancelled.clear()
            return self._scheduler.schedule(now_s)

    def _run(self, plan: StepPlan) -> StepResult:
        if plan.is_empty:
            return StepResult()
        if plan.has_prefill:
            # Text that waits for more must not wait for a whole chunk.
            self._output.deliver()
        result = self._runner.execute(plan)
        self._output.decode(result)
        return result

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        with self.lock:
            happened = self._scheduler.commit(plan, result, time.monotonic())
            if result.is_prepared:
                self._reporter.report_copies(happened, result.prepare_s)
            self._publish(happened, result.prepare_s)
        self._output.deliver_due()
        if plan.is_empty:
            self._pause()

    def _publish(self, happened: Sequence[Event], attach_s: float = 0.0) -> None:
        ended = self._output.process(happened, attach_s)
        self._reporter.report(happened, ended)
        for request_id in ended:
            self._runner.forget(request_id)

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; return False when the loop is to end."""
        with self.lock:
            while not (self._is_closing or self._cancelled or self._scheduler.has_work):
                expiry_s = self._scheduler.next_expiry_s()
                if expiry_s is None:
                    self._wake.wait()
                elif not self._wake.wait(max(0.0, expiry_s - time.monotonic())):
                    # An empty step evicts what has expired, and reports it, also without traffic.
                    break
            return not self._is_closing

    def _pause(self) -> None:
        """Wait a moment if requests wait and none of them can be scheduled.

        The scheduler rules that out; if a bug of ours does not, the loop must not spin.
        """
        with self.lock:
            if self._scheduler.has_work and not (self._cancelled or self._is_closing):
                self._wake.wait(_PAUSE_S)
