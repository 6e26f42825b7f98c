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
        """A sequence was detached, attached, forked, captured, evicted, or lost its pin."""
        ...

    def states_moved(self, seconds: float, *, is_attach: bool, is_detach: bool) -> None:
        """The states of one admission were moved; both flags may be set."""
        ...

    def token_followed(self, gap_s: float) -> None:
        """An answer got one more token, ``gap_s`` seconds after the previous one."""
        ...
