"""Failures of requests, in two classes: temporary, to be retried, or permanent.

Owns how the stable codes of an engine's errors are classed.
"""

from __future__ import annotations

from typing import Literal

Class = Literal["temporary", "permanent"]

ERROR_CLASSES: dict[str, Class] = {
    # A retry may succeed.
    "server_overloaded": "temporary",
    "unavailable": "temporary",
    "request_queue_timeout": "temporary",
    "draining": "temporary",
    "engine_down": "temporary",
    "request_failed": "temporary",
    "out_of_pages": "temporary",
    "conflict": "temporary",
    "session_busy": "temporary",
    # A restart of the engine ends these, and the kubelet restarts it.
    "kvreg_error": "temporary",
    "invariant_broken": "temporary",
    "current_slot_dropped": "temporary",
    # The same request gets the same answer.
    "invalid_request": "permanent",
    "unprocessable_body": "permanent",
    "body_too_large": "permanent",
    "context_length_exceeded": "permanent",
    "invalid_api_key": "permanent",
    "permission_denied": "permanent",
    "not_found": "permanent",
    "session_not_found": "permanent",
    "model_not_found": "permanent",
    "pin_refused": "permanent",
    "invalid_configuration": "permanent",
    "does_not_fit": "permanent",
    "invalid_model_files": "permanent",
}
"""By the ``code`` of the error's body."""

_TEMPORARY_STATUSES = frozenset({408, 425, 429})


class OperatorError(Exception):
    """A request of the operator failed."""


class TemporaryError(OperatorError):
    """A retry after ``delay_s`` may succeed."""

    def __init__(self, message: str, *, delay_s: float) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class PermanentError(OperatorError):
    """A retry fails, too, until a user changes something."""


class NotServed(PermanentError):
    """The API server has no such object, or no such kind."""


class Conflict(TemporaryError):
    """The object has changed since it was read."""


def class_of(code: str | None, status: int) -> Class:
    """Class a failure by its code, or by its HTTP status if kvreg has no such code."""
    if code in ERROR_CLASSES:
        return ERROR_CLASSES[code]
    return "temporary" if status >= 500 or status in _TEMPORARY_STATUSES else "permanent"
