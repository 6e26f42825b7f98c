"""The callbacks of metrics, logs and traces: ended requests, moves and token intervals."""

from __future__ import annotations

from typing import Protocol

from kvreg_service.core.events import Event
from kvreg_service.engine.interface.record import RequestRecord


class Observer(Protocol):
    """Called on the step loop's thread, between two steps. Must return within microseconds.

    An exception is logged and ignored.
    """

    def request_ended(self, record: RequestRecord) -> None:
        """An accepted request has ended. Called once for each."""
        ...

    def registry_changed(self, event: Event) -> None:
        """A session was detached, attached or lost its pin, or a state was kept or freed."""
        ...

    def state_copied(self, seconds: float) -> None:
        """An admission copied the state that it resumes."""
        ...

    def token_followed(self, gap_s: float) -> None:
        """An answer got one more token, ``gap_s`` seconds after the previous one."""
        ...
