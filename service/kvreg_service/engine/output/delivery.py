"""Hands events from the step loop to the event loops that wait for them.

Waking an event loop is a system call that releases the GIL, and what the loop then does with an
event takes the GIL from the model. So every loop is woken at most once per step, and text may wait
until it is due.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from contextlib import suppress
from typing import Generic, TypeVar

INTERVAL_S = 0.005
"""How long text may wait for more text: not perceptible, and less than a step of a large model."""

T = TypeVar("T")


class Delivery(Generic[T]):
    """Owns the events that are not handed over yet. Called on the step loop's thread only."""

    def __init__(self) -> None:
        self._waiting: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[T], T]]]
        self._waiting = defaultdict(list)
        self._last_flush_s = -math.inf

    def put(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[T], event: T) -> None:
        """Keep an event for a queue that is read on ``loop``."""
        self._waiting[loop].append((queue, event))

    def is_due(self, now_s: float) -> bool:
        """Return whether an event is waiting, or text has waited long enough."""
        return bool(self._waiting) or now_s - self._last_flush_s >= INTERVAL_S

    def flush(self, now_s: float) -> None:
        """Hand everything over, in order, with one wake-up for each event loop."""
        self._last_flush_s = now_s
        for loop, events in self._waiting.items():
            # An event loop that was closed with its server raises; it has no readers.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_put_all, events)
        self._waiting.clear()


def _put_all(events: list[tuple[asyncio.Queue[T], T]]) -> None:
    for queue, event in events:
        queue.put_nowait(event)
