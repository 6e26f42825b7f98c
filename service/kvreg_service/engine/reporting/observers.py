"""Several observers as one that never raises."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvreg_service.core.events import Event
from kvreg_service.engine.interface.observer import Observer
from kvreg_service.engine.interface.record import RequestRecord

_logger = logging.getLogger(__name__)

_FAILED = "the observer %s failed"


class Observers:
    """Calls several observers. Never raises."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def request_ended(self, record: RequestRecord) -> None:
        """Call all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.request_ended(record)

    def registry_changed(self, event: Event) -> None:
        """Call all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.registry_changed(event)

    def state_copied(self, seconds: float) -> None:
        """Call all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.state_copied(seconds)

    def token_followed(self, gap_s: float) -> None:
        """Call all of them."""
        # Once for each token: without the context manager, whose calls cost more than the observer.
        for observer in self._observers:
            try:
                observer.token_followed(gap_s)
            except Exception:
                _logger.exception(_FAILED, type(observer).__name__)


@contextmanager
def _logged(observer: Observer) -> Iterator[None]:
    try:
        yield
    except Exception:
        _logger.exception(_FAILED, type(observer).__name__)
