"""The queue of targets, by the time of their next reconcile.

Owns the times. One worker holds a target at a time; any number of wakes meanwhile cause one more
reconcile afterwards. Two profiles of one target share a key, so that they never run concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

# Events come in bursts: a pod that starts causes several within this time.
COALESCE_S = 0.2


@dataclass(frozen=True, order=True)
class TargetKey:
    """One StatefulSet, whether it exists or not."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class TargetQueue:
    """Targets by the time of their next reconcile. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due_s: dict[TargetKey, float] = {}
        self._taken: set[TargetKey] = set()
        self._changed = asyncio.Event()

    def wake(self, target: TargetKey, delay_s: float = COALESCE_S) -> None:
        """Schedule a reconcile after ``delay_s``, unless an earlier one is scheduled."""
        due_s = self._clock() + delay_s
        self._due_s[target] = min(due_s, self._due_s.get(target, due_s))
        self._changed.set()

    async def take(self) -> TargetKey:
        """Wait for the next target that is due. The caller has to call ``give_back``."""
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
        """Release a target after its reconcile."""
        self._taken.discard(target)
        self._changed.set()

    async def _wait_for_change(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._changed.wait()
        except TimeoutError:
            return
