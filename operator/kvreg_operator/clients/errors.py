"""Failures of the operator's dealings, in two words: temporary, to be tried again, or permanent.

Owns how the stable codes of an engine's errors are classed. Which exceptions of Kopf they become
is the handlers' part.
"""

from __future__ import annotations

from typing import Literal

Class = Literal["temporary", "permanent"]

ERROR_CLASSES: dict[str, Class] = {
    # What a later moment, or another look at the cluster, changes by itself.
    "server_overloaded": "temporary",
    "unavailable": "temporary",
    "request_queue_timeout": "temporary",
    "draining": "temporary",
    "engine_down": "temporary",
    "request_failed": "temporary",
    "out_of_pages": "temporary",
    "conflict": "temporary",
    "session_busy": "temporary",
    # A restart ends these, and a restart is what the kubelet does.
    "kvreg_error": "temporary",
    "invariant_broken": "temporary",
    "current_slot_dropped": "temporary",
    # Asking the same again gets the same answer.
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

_PASSING_STATUSES = frozenset({408, 425, 429})


class OperatorError(Exception):
    """Something that the operator dealt with did not do what was asked."""


class TemporaryError(OperatorError):
    """Trying again after ``delay_s`` is sensible."""

    def __init__(self, message: str, *, delay_s: float) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class PermanentError(OperatorError):
    """Only a change by a person helps."""


class NotServed(PermanentError):
    """The API server has no such object, or no such kind."""


class Conflict(TemporaryError):
    """The object has changed since it was read."""


def class_of(code: str | None, status: int) -> Class:
    """Class a failure by its code, or by its HTTP status where the code is not one of kvreg's."""
    if code in ERROR_CLASSES:
        return ERROR_CLASSES[code]
    return "temporary" if status >= 500 or status in _PASSING_STATUSES else "permanent"
