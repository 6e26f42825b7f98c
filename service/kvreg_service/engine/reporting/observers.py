"""Several observers as one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvreg_service.core.events import Event
from kvreg_service.engine.interface.observer import Observer
from kvreg_service.engine.interface.record import RequestRecord

_logger = logging.getLogger(__name__)


class Observers:
    """Several observers as one that never raises."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def request_ended(self, record: RequestRecord) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.request_ended(record)

    def registry_changed(self, event: Event) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.registry_changed(event)

    def states_moved(self, seconds: float, *, is_attach: bool, is_detach: bool) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.states_moved(seconds, is_attach=is_attach, is_detach=is_detach)

    def token_followed(self, gap_s: float) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.token_followed(gap_s)


@contextmanager
def _logged(observer: Observer) -> Iterator[None]:
    try:
        yield
    except Exception:
        _logger.exception("the observer %s failed", type(observer).__name__)
