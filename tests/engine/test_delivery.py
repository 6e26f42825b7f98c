"""Delivery of events from the step loop to the event loops of the requests."""

import asyncio

import pytest

from kvreg_service.engine.output.delivery import INTERVAL_S, Delivery


class _CountingLoop:
    """A stub event loop that records thread-safe calls and runs them on demand."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.calls = []
        self._is_closed = is_closed

    def call_soon_threadsafe(self, call, *arguments) -> None:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        self.calls.append((call, arguments))

    def run(self) -> None:
        for call, arguments in self.calls:
            call(*arguments)


def _drain(queue):
    return [queue.get_nowait() for _ in range(queue.qsize())]


def test_events_of_one_step_wake_their_loop_once():
    delivery, loop = Delivery(), _CountingLoop()
    for queue in (asyncio.Queue(), asyncio.Queue()):
        delivery.put(loop, queue, "event")
    delivery.flush(now_s=1.0)
    assert len(loop.calls) == 1


def test_each_queue_gets_its_events_in_order():
    delivery, loop = Delivery(), _CountingLoop()
    first, second = asyncio.Queue(), asyncio.Queue()
    for queue, event in ((first, 1), (second, 2), (first, 3)):
        delivery.put(loop, queue, event)
    delivery.flush(now_s=1.0)
    loop.run()
    assert (_drain(first), _drain(second)) == ([1, 3], [2])


def test_events_are_delivered_once():
    delivery, loop = Delivery(), _CountingLoop()
    delivery.put(loop, asyncio.Queue(), "event")
    delivery.flush(now_s=1.0)
    delivery.flush(now_s=2.0)
    assert len(loop.calls) == 1


def test_events_for_a_closed_loop_are_dropped():
    delivery, loop = Delivery(), _CountingLoop(is_closed=True)
    delivery.put(loop, asyncio.Queue(), "event")
    delivery.flush(now_s=1.0)
    assert not loop.calls


@pytest.mark.parametrize(("waited_s", "is_due"), [(0.0, False), (INTERVAL_S, True)])
def test_text_is_due_after_the_interval(waited_s, is_due):
    delivery = Delivery()
    delivery.flush(now_s=0.0)
    assert delivery.is_due(waited_s) is is_due


def test_the_first_text_is_due_at_once():
    assert Delivery().is_due(0.0)


def test_an_event_is_due_at_once():
    delivery = Delivery()
    delivery.flush(now_s=1.0)
    delivery.put(_CountingLoop(), asyncio.Queue(), "event")
    assert delivery.is_due(1.0)
