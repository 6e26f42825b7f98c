"""A clock that a test can advance."""

from __future__ import annotations

import time


class Clock:
    """Replaces the module `time` in the engine."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        """Return the real monotonic time plus everything that was added by `advance`."""
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Make kept sequences older without waiting."""
        self._ahead_s += seconds
