"""Finds every function of the core that is called inside a block, and raises in one of them.

Owns what a fault point is. The tests say what must hold after a fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_GENERATOR
from types import CodeType
from typing import Any, Literal

from kvreg_service.core import intake, scheduler

Moment = Literal["call", "return"]
Path = tuple[tuple[CodeType, int], ...]


class InjectedFault(Exception):
    """An exception of a type that no code handles by name."""


@dataclass(frozen=True)
class Point:
    """A function call: its number within the observed call of the scheduler, and its path."""

    number: int
    path: str


@dataclass
class Faults:
    """Counts the function calls that the scheduler makes while observed, and raises at one.

    ``points`` has the first function call along each path, over all observed calls.
    ``raised_at`` is the path at which the fault was raised.
    """

    moment: Moment
    raise_at: int | None = None
    points: list[Point] = field(default_factory=list)
    raised_at: str | None = None
    _num_calls: int = 0
    _paths: set[Path] = field(default_factory=set)

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Count the function calls inside the block, from 0."""
        self._num_calls = 0
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _profile(self, frame: Any, event: str, _argument: object) -> None:
        if event != self.moment or not self._is_point(frame):
            return
        number, self._num_calls = self._num_calls, self._num_calls + 1
        if self.raise_at is None:
            self._note(number, frame)
        elif number == self.raise_at:
            self.raised_at = _describe(_path_to(frame))
            raise InjectedFault

    def _is_point(self, frame: Any) -> bool:
        # Code that dataclasses generate is not ours, and a generator is entered many times.
        is_written = frame.f_code.co_filename != "<string>"
        is_function = not frame.f_code.co_flags & CO_GENERATOR
        if not (_is_core(frame) and is_written and is_function) or _is_scheduler(frame):
            return False
        # A call that the scheduler itself makes returns into the code that handles faults.
        return self.moment == "call" or not _is_scheduler(frame.f_back)

    def _note(self, number: int, frame: Any) -> None:
        path = _path_to(frame)
        if path not in self._paths:
            self._paths.add(path)
            self.points.append(Point(number, _describe(path)))


def _path_to(frame: Any) -> Path:
    """Return the frames of the core, innermost first."""
    path = []
    while _is_core(frame):
        path.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(path)


def _describe(path: Path) -> str:
    return " < ".join(f"{code.co_qualname}:{line}" for code, line in path)


def _is_core(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("kvreg_service.core")


def _is_scheduler(frame: Any) -> bool:
    """Return whether the frame belongs to the modules that handle faults."""
    return frame.f_globals.get("__name__") in (scheduler.__name__, intake.__name__)
