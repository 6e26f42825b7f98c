"""The tree of errors. Each class has a stable ``code``, each error structured fields.

``api/errors.py`` maps every class to a status and a body, and ``kvreg_operator`` classes the same
codes as temporary or permanent.
"""

from __future__ import annotations

from typing import ClassVar


class KvregError(Exception):
    """Base of all errors of kvreg. ``fields`` are the values that programs read."""

    code: ClassVar[str] = "kvreg_error"

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class InvalidRequest(KvregError):
    """The request is malformed. ``param`` names the field, and the message its value and limit."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, **fields: object) -> None:
        super().__init__(message, param=param, **fields)
        self.param = param


class UnprocessableBody(InvalidRequest):
    """The body does not have the shape of the route: wrong types or missing fields."""

    code = "unprocessable_body"


class BodyTooLarge(InvalidRequest):
    """The body has more bytes than the server reads."""

    code = "body_too_large"


class ContextTooLong(InvalidRequest):
    """The prompt leaves no room for one answer token within the context limit."""

    code = "context_length_exceeded"

    def __init__(
        self, prompt_tokens: int, max_context_tokens: int, *, is_at_least: bool = False
    ) -> None:
        count = f"at least {prompt_tokens}" if is_at_least else str(prompt_tokens)
        super().__init__(
            f"the prompt has {count} tokens and needs room for at least one more, "
            f"but the context limit is {max_context_tokens} tokens",
            param="messages",
            prompt_tokens=prompt_tokens,
            max_context_tokens=max_context_tokens,
        )


class Unauthorized(KvregError):
    """No API key, or an unknown one."""

    code = "invalid_api_key"


class Forbidden(KvregError):
    """The key is valid, but its tenant lacks the permission."""

    code = "permission_denied"


class NotFound(KvregError):
    """The named object does not exist."""

    code = "not_found"


class SessionNotFound(NotFound):
    """No kept sequence has this id."""

    code = "session_not_found"


class ModelNotFound(NotFound):
    """The request names a model that this engine does not serve."""

    code = "model_not_found"


class Conflict(KvregError):
    """The request conflicts with the current state."""

    code = "conflict"


class SessionBusy(Conflict):
    """The kept sequence is running on a lane."""

    code = "session_busy"


class PinRefused(Conflict):
    """One more pin would leave too few places or pages for other requests."""

    code = "pin_refused"


class Overloaded(KvregError):
    """The queue is full. Clients may retry after ``retry_after_s``."""

    code = "server_overloaded"

    def __init__(self, message: str, *, retry_after_s: float, **fields: object) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **fields)
        self.retry_after_s = retry_after_s


class Unavailable(KvregError):
    """The engine cannot serve now. Clients may retry after ``retry_after_s``."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 5.0, **fields: object) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **fields)
        self.retry_after_s = retry_after_s


class QueueTimeout(Unavailable):
    """The request waited in the queue longer than it may."""

    code = "request_queue_timeout"


class Draining(Unavailable):
    """The engine finishes accepted requests and refuses new ones."""

    code = "draining"


class EngineDown(Unavailable):
    """The step loop has ended; only a restart helps."""

    code = "engine_down"


class RequestFailed(KvregError):
    """This one request failed while it was planned or run. Others are not affected."""

    code = "request_failed"


def wrap_failure(doing: str, error: Exception) -> KvregError:
    """Return the error of a request for which ``doing`` something raised ``error``.

    A `KvregError` is returned as it is. Any other becomes the cause of a `RequestFailed`: the
    client gets one sentence, and the log the traceback.
    """
    if isinstance(error, KvregError):
        return error
    failure = RequestFailed(f"{doing} failed: {error!r}")
    failure.__cause__ = error
    return failure


class ConfigurationError(KvregError):
    """Settings that contradict each other or do not fit the device. Raised at start only."""

    code = "invalid_configuration"


class DoesNotFit(ConfigurationError):
    """A profile needs more memory than there is; ``short_by_bytes`` says how much."""

    code = "does_not_fit"

    def __init__(self, message: str, *, short_by_bytes: int, **fields: object) -> None:
        super().__init__(message, short_by_bytes=short_by_bytes, **fields)
        self.short_by_bytes = short_by_bytes


class CheckpointError(ConfigurationError):
    """Model files that are missing, of a wrong shape or of an unknown format."""

    code = "invalid_model_files"


class CurrentSlotDropped(KvregError):
    """The current slot of an entry was requested, but the profile drops it. Always a bug."""

    code = "current_slot_dropped"


class OutOfPages(KvregError):
    """The page pool has no free page left."""

    code = "out_of_pages"


class InvariantBroken(KvregError):
    """A bug of kvreg: a pool or a plan contradicts itself. Readiness turns off."""

    code = "invariant_broken"
