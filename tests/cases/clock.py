"""A clock that a test can put forward."""

from __future__ import annotations

import time


class Clock:
    """Stands in for the module `time` where an engine reads it."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        """The true clock, and all that it was put forward."""
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Let kept sequences grow older without waiting."""
        self._ahead_s += seconds
