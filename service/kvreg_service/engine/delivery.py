"""The hand-over of events from the step loop's thread to the event loops that wait for them.

Waking an event loop is a system call that gives up the interpreter: a step that woke every reader
by itself would wait for each of them in turn. So events are gathered, and a step wakes once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Generic, TypeVar

T = TypeVar("T")


class Delivery(Generic[T]):
    """Owns what has not been handed over yet. Called on the step loop's thread only."""

    def __init__(self) -> None:
        self._waiting: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[T], T]]]
        self._waiting = defaultdict(list)

    def put(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[T], event: T) -> None:
        """Keep an event for a queue that is read on ``loop``."""
        self._waiting[loop].append((queue, event))

    def flush(self) -> None:
        """Hand everything over, in order, with one wake-up for each event loop."""
        for loop, events in self._waiting.items():
            # It may be closed already when the server is torn down; nobody reads then.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_put_all, events)
        self._waiting.clear()


def _put_all(events: list[tuple[asyncio.Queue[T], T]]) -> None:
    for queue, event in events:
        queue.put_nowait(event)
