"""One worker holds a target at a time, and two wakes are one reconcile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue

A, B = TargetKey("serving", "a"), TargetKey("serving", "b")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def new_queue() -> tuple[TargetQueue, Clock]:
    clock = Clock()
    return TargetQueue(clock), clock


async def is_waiting(taking: Coroutine[Any, Any, TargetKey]) -> bool:
    """Return whether nothing is due now."""
    task = asyncio.ensure_future(taking)
    for _ in range(5):
        await asyncio.sleep(0)
    is_done = task.done()
    task.cancel()
    return not is_done


def test_what_is_due_first_is_taken_first() -> None:
    async def run() -> list[TargetKey]:
        queue, clock = new_queue()
        queue.wake(A, 2)
        queue.wake(B, 1)
        clock.now_s += 5
        return [await queue.take(), await queue.take()]

    assert asyncio.run(run()) == [B, A]


def test_waking_often_is_one_look() -> None:
    async def run() -> bool:
        queue, clock = new_queue()
        for _ in range(5):
            queue.wake(A)
        clock.now_s += 1
        queue.give_back(await queue.take())
        return await is_waiting(queue.take())

    assert asyncio.run(run())


def test_earlier_time_wins() -> None:
    async def run() -> TargetKey:
        queue, clock = new_queue()
        queue.wake(A, 1)
        queue.wake(A, 60)
        clock.now_s += 2
        return await queue.take()

    assert asyncio.run(run()) == A


def test_target_is_with_one_worker_at_a_time() -> None:
    async def run() -> tuple[bool, TargetKey]:
        queue, clock = new_queue()
        queue.wake(A, 0)
        taken = await queue.take()
        queue.wake(A, 0)
        clock.now_s += 1
        is_held = await is_waiting(queue.take())
        queue.give_back(taken)
        return is_held, await queue.take()

    assert asyncio.run(run()) == (True, A)


def test_other_targets_do_not_wait() -> None:
    async def run() -> TargetKey:
        queue, _ = new_queue()
        queue.wake(A, 0)
        await queue.take()
        queue.wake(A, 0)
        queue.wake(B, 0)
        return await queue.take()

    assert asyncio.run(run()) == B


def test_worker_that_waits_is_woken() -> None:
    async def run() -> TargetKey:
        queue, _ = new_queue()
        taking = asyncio.ensure_future(queue.take())
        await asyncio.sleep(0)
        queue.wake(A, 0)
        return await taking

    assert asyncio.run(run()) == A
