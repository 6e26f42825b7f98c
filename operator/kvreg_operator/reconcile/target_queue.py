"""When each target is looked at next.

Owns the times. A target is with one worker at a time; what is asked for meanwhile is one more look
afterwards, however often it was asked for. It makes no look itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvreg_operator.observe.targets import TargetKey

# Events come in bursts: a pod that starts is told of a handful of times within this.
COALESCE_S = 0.2


class TargetQueue:
    """Targets by the time of their next look. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due_s: dict[TargetKey, float] = {}
        self._taken: set[TargetKey] = set()
        self._changed = asyncio.Event()

    def wake(self, target: TargetKey, delay_s: float = COALESCE_S) -> None:
        """Have a target looked at after ``delay_s``, or sooner if that was asked for already."""
        due_s = self._clock() + delay_s
        self._due_s[target] = min(due_s, self._due_s.get(target, due_s))
        self._changed.set()

    async def take(self) -> TargetKey:
        """Wait for the next target that is due. Its taker has to call ``give_back``."""
        while True:
            self._changed.clear()
            target = min(
                self._due_s.keys() - self._taken, key=self._due_s.__getitem__, default=None
            )
            if target is None:
                await self._changed.wait()
                continue
            wait_s = self._due_s[target] - self._clock()
            if wait_s <= 0:
                del self._due_s[target]
                self._taken.add(target)
                return target
            await self._wait_for_change(wait_s)

    def give_back(self, target: TargetKey) -> None:
        """Say that the look at a target is over."""
        self._taken.discard(target)
        self._changed.set()

    async def _wait_for_change(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._changed.wait()
        except TimeoutError:
            return
