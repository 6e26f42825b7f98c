"""Finds every function of the core that is called inside a block, and raises in one of them.

Owns what a fault point is. What must survive a fault is in the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_GENERATOR
from typing import Any, Literal

from kvreg_service.core import intake, scheduler

Moment = Literal["call", "return"]
Path = tuple[tuple[object, int], ...]


class InjectedFault(Exception):
    """What nobody expects."""


@dataclass(frozen=True)
class Point:
    """A call: its number, the function that the scheduler called for it, and the whole path."""

    number: int
    called: str
    path: str


@dataclass
class Faults:
    """Counts the calls out of the scheduler while it is watched, and raises at one of them.

    ``points`` has the first call along each path.
    """

    moment: Moment
    raise_at: int | None = None
    num_calls: int = 0
    points: list[Point] = field(default_factory=list)
    _paths: set[Path] = field(default_factory=set)

    @contextmanager
    def watched_if(self, is_watched: bool) -> Iterator[None]:
        """Count what is called inside the block."""
        before = sys.getprofile()
        sys.setprofile(self._profile if is_watched else before)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _profile(self, frame: Any, event: str, _argument: object) -> None:
        if event != self.moment or not self._is_point(frame):
            return
        number, self.num_calls = self.num_calls, self.num_calls + 1
        if self.raise_at is None:
            self._note(number, frame)
        elif number == self.raise_at:
            raise InjectedFault

    def _is_point(self, frame: Any) -> bool:
        # What dataclasses generate was written by nobody, and a generator is entered many times.
        is_written = frame.f_code.co_filename != "<string>"
        is_function = not frame.f_code.co_flags & CO_GENERATOR
        if not (_is_core(frame) and is_written and is_function) or _is_scheduler(frame):
            return False
        # Where a call of the scheduler ends, it is the scheduler's turn again.
        return self.moment == "call" or not _is_scheduler(frame.f_back)

    def _note(self, number: int, frame: Any) -> None:
        path, names, called = [], [], ""
        while _is_core(frame):
            path.append((frame.f_code, frame.f_lineno))
            names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            if not _is_scheduler(frame):
                called = frame.f_code.co_qualname
            frame = frame.f_back
        if tuple(path) not in self._paths:
            self._paths.add(tuple(path))
            self.points.append(Point(number, called, " < ".join(names)))


def _is_core(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("kvreg_service.core")


def _is_scheduler(frame: Any) -> bool:
    """Whether it is one of those who contain faults: the scheduler and its intake."""
    return frame.f_globals.get("__name__") in (scheduler.__name__, intake.__name__)
