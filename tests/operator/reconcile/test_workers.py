"""A reconcile that fails is retried with a backoff, and delays no other target."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from kvreg_operator.clients.errors import Conflict, PermanentError, TemporaryError
from kvreg_operator.reconcile import workers as workers_module
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue
from kvreg_operator.reconcile.workers import AFTER_PERMANENT_S, MAX_BACKOFF_S, Workers

KEY = TargetKey("serving", "chat")


class RecordingQueue(TargetQueue):
    """A queue in which everything is due at once, and that records the delays."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.delays_s: list[float] = []

    def wake(self, target: TargetKey, delay_s: float = 0.0) -> None:
        self.delays_s.append(delay_s)
        super().wake(target, 0.0)


class Results:
    """A stand-in for the reconciler, with the results of its calls in order."""

    def __init__(self, *ends: float | Exception | None) -> None:
        self.ends = list(ends)
        self.is_over = asyncio.Event()

    async def reconcile(self, _: TargetKey) -> float | None:
        if not self.ends:
            self.is_over.set()
            await asyncio.Event().wait()
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def delays_after(make: Callable[[], Results]) -> tuple[list[float], CollectorRegistry]:
    """Return the delays with which a worker queues its target again."""
    registry = CollectorRegistry()

    async def run() -> list[float]:
        queue, results = RecordingQueue(), make()
        metrics = OperatorMetrics(registry, lambda: 0.0)
        workers = Workers(queue, results, metrics)  # type: ignore[arg-type]
        task = asyncio.create_task(workers.work())
        queue.wake(KEY)
        await results.is_over.wait()
        task.cancel()
        return queue.delays_s[1:]

    return asyncio.run(run()), registry


def test_temporary_failures_are_retried_with_a_backoff() -> None:
    failures = [TemporaryError("away", delay_s=3) for _ in range(8)]
    delays, _ = delays_after(lambda: Results(*failures))
    assert delays == [3, 3, 4, 8, 16, 32, MAX_BACKOFF_S, MAX_BACKOFF_S]


def test_success_resets_the_backoff() -> None:
    failure = TemporaryError("away", delay_s=1)
    delays, _ = delays_after(lambda: Results(failure, failure, failure, 5.0, failure))
    assert delays == [1, 2, 4, 5, 1]


def test_permanent_failure_waits_for_a_minute() -> None:
    delays, _ = delays_after(lambda: Results(PermanentError("no right")))
    assert delays == [AFTER_PERMANENT_S]


def test_bug_is_logged_and_ends_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    delays, _ = delays_after(lambda: Results(KeyError("spec"), 5.0))
    assert delays == [AFTER_PERMANENT_S, 5.0]
    assert "serving/chat: the reconcile failed" in caplog.text


def test_reconcile_that_hangs_is_cancelled_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers_module, "RECONCILE_TIMEOUT_S", 0.05)

    class Hanging(Results):
        num_calls = 0

        async def reconcile(self, _: TargetKey) -> float | None:
            self.num_calls += 1
            if self.num_calls == 3:
                self.is_over.set()
            await asyncio.Event().wait()
            return None

    delays, registry = delays_after(Hanging)
    assert delays == [1, 2]
    assert "the reconcile took longer" in caplog.text
    counted = {"result": "temporary_error"}
    assert registry.get_sample_value("kvreg_operator_reconciles_total", counted) == 2


def test_conflict_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    delays, _ = delays_after(lambda: Results(Conflict("changed", delay_s=1.0)))
    assert delays == [1.0]
    assert caplog.records == []


def test_failures_are_counted_by_class() -> None:
    ends = (TemporaryError("away", delay_s=1), PermanentError("no right"))
    _, registry = delays_after(lambda: Results(*ends))
    counts = [
        registry.get_sample_value("kvreg_operator_reconciles_total", {"result": result})
        for result in ("temporary_error", "permanent_error")
    ]
    assert counts == [1, 1]
