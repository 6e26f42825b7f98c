"""Passes what a scheduler decides and reports on in the moment in which it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from kvreg_service.core import events


class Disagreement(BaseException):
    """Passes through the scheduler, which handles every `Exception`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def strictly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turn every exception of a method that the scheduler calls into a `Disagreement`."""

    @wraps(method)
    def strict(*args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except Exception as error:
            raise Disagreement(error) from error

    return strict


@contextmanager
def disagreements() -> Iterator[None]:
    """Raise the error of a `Disagreement` of the block."""
    try:
        yield
    except Disagreement as disagreement:
        raise disagreement.error from None


class EventTap(list[events.Event]):
    """The scheduler's list of events, which passes each one on when it occurs."""

    def __init__(self, listen: Callable[[events.Event], None]) -> None:
        super().__init__()
        self._listen = listen

    def append(self, event: events.Event) -> None:
        super().append(event)
        self._listen(event)
