"""The one table from kvreg's errors to HTTP: status, body, headers.

Owns the format of every error response, including those of the framework (unknown routes, wrong
methods) and of unexpected exceptions: OpenAI's body everywhere, and Anthropic's on the routes of
its API, with the same statuses.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from kvreg_service.core import errors

_logger = logging.getLogger(__name__)

# nginx's status for a client that has disconnected; the response is not read.
CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True)
class ErrorShape:
    """The HTTP status and the ``type`` of OpenAI's error body."""

    status: int
    type: str


_INVALID = "invalid_request_error"
_SERVER = "server_error"
_BUSY = "service_unavailable_error"

ERROR_TABLE: Mapping[type[errors.KvregError], ErrorShape] = {
    errors.KvregError: ErrorShape(500, _SERVER),
    errors.InvalidRequest: ErrorShape(400, _INVALID),
    errors.ContextTooLong: ErrorShape(400, _INVALID),
    errors.BodyTooLarge: ErrorShape(413, _INVALID),
    errors.UnprocessableBody: ErrorShape(422, _INVALID),
    errors.Unauthorized: ErrorShape(401, "authentication_error"),
    errors.Forbidden: ErrorShape(403, "permission_error"),
    errors.NotFound: ErrorShape(404, _INVALID),
    errors.SessionNotFound: ErrorShape(404, _INVALID),
    errors.ModelNotFound: ErrorShape(404, _INVALID),
    errors.Conflict: ErrorShape(409, _INVALID),
    errors.SessionBusy: ErrorShape(409, _INVALID),
    errors.PinRefused: ErrorShape(409, _INVALID),
    errors.Overloaded: ErrorShape(429, "rate_limit_error"),
    errors.Unavailable: ErrorShape(503, _BUSY),
    errors.QueueTimeout: ErrorShape(503, _BUSY),
    errors.Draining: ErrorShape(503, _BUSY),
    errors.EngineDown: ErrorShape(503, _BUSY),
    errors.RequestFailed: ErrorShape(500, _SERVER),
    errors.ConfigurationError: ErrorShape(500, _SERVER),
    errors.DoesNotFit: ErrorShape(500, _SERVER),
    errors.CheckpointError: ErrorShape(500, _SERVER),
    errors.CurrentSlotDropped: ErrorShape(500, _SERVER),
    errors.OutOfPages: ErrorShape(503, _BUSY),
    errors.InvariantBroken: ErrorShape(500, _SERVER),
}

MESSAGES_PATH = "/v1/messages"
_MODELS_PATH = "/v1/models"
# Every client of Anthropic's API sends it.
_VERSION_HEADER = "anthropic-version"
# Anthropic's error types by status; other statuses have its generic type for 4xx or for 5xx.
_MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

# Statuses after which a client may retry.
_RETRY_STATUSES = (429, 503)
_DEFAULT_RETRY_AFTER_S = 1.0

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}

ErrorNote = Callable[[Request, Exception], None]
"""Called with a request and the error that becomes its response."""

_Handler = Callable[[Request, Exception], Awaitable[Response]]


def shape_of(error: errors.KvregError) -> ErrorShape:
    """Return the row of the nearest base class in the table."""
    return next(ERROR_TABLE[cls] for cls in type(error).__mro__ if cls in ERROR_TABLE)


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    """Build OpenAI's error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def messages_error_body(
    message: str, *, status: int, code: str, param: str | None = None
) -> dict[str, Any]:
    """Build Anthropic's error body, with the stable code in ``details``."""
    default = _INVALID if status < 500 else "api_error"
    kind = _MESSAGES_TYPES.get(status, default)
    details = {"error_code": code, "param": param}
    return {"type": "error", "error": {"type": kind, "message": message, "details": details}}


def body_of(error: Exception) -> dict[str, Any]:
    """Build OpenAI's body of any exception; an unexpected one shows only its class name."""
    message, shape, code, param = _describe(error)
    return error_body(message, kind=shape.type, code=code, param=param)


def messages_body_of(error: Exception) -> dict[str, Any]:
    """Build Anthropic's body of any exception; an unexpected one shows only its class name."""
    message, shape, code, param = _describe(error)
    return messages_error_body(message, status=shape.status, code=code, param=param)


def code_of(error: Exception) -> str:
    """Return the stable code of any exception that is not an HTTPException."""
    return error.code if isinstance(error, errors.KvregError) else "internal_error"


def _describe(error: Exception) -> tuple[str, ErrorShape, str, str | None]:
    """The message, the row, the code and the field of any exception."""
    code = code_of(error)
    if isinstance(error, errors.KvregError):
        param = error.fields.get("param")
        return error.message, shape_of(error), code, None if param is None else str(param)
    message = f"internal server error ({type(error).__name__}); see the server log"
    return message, ErrorShape(500, _SERVER), code, None


def is_of_messages_api(request: Request) -> bool:
    """Return whether the response has Anthropic's format. Both APIs list models at one path."""
    path: str = request.scope["path"]
    if path.startswith(_MODELS_PATH):
        return _VERSION_HEADER in request.headers
    return path.startswith(MESSAGES_PATH)


def response_to(error: errors.KvregError, request: Request) -> JSONResponse:
    """Build the error response, with Retry-After for statuses that may be retried."""
    shape = shape_of(error)
    headers = {}
    if shape.status in _RETRY_STATUSES:
        retry_after_s = getattr(error, "retry_after_s", _DEFAULT_RETRY_AFTER_S)
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    if shape.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(_body_for(request, error), status_code=shape.status, headers=headers)


def _body_for(request: Request, error: Exception) -> dict[str, Any]:
    return messages_body_of(error) if is_of_messages_api(request) else body_of(error)


def install_error_handlers(app: FastAPI, note: ErrorNote) -> None:
    """Install the handlers; ``note`` is called for kvreg's errors and unexpected exceptions."""
    app.add_exception_handler(errors.KvregError, _noting(note, _on_kvreg_error))
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_client_disconnect)
    app.add_exception_handler(Exception, _noting(note, _on_unexpected_error))


def _noting(note: ErrorNote, handle: _Handler) -> _Handler:
    async def handler(request: Request, error: Exception) -> Response:
        note(request, error)
        return await handle(request, error)

    return handler


async def _on_kvreg_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.KvregError)
    if shape_of(error).status == 500:
        _logger.error("request failed", exc_info=error, extra={"code": error.code})
    return response_to(error, request)


async def _on_invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return response_to(errors.UnprocessableBody(f"{name}: {first['msg']}", param=name), request)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    code = _HTTP_CODES.get(error.status_code, "http_error")
    if is_of_messages_api(request):
        body = messages_error_body(message, status=error.status_code, code=code)
    else:
        body = error_body(message, kind=_INVALID, code=code)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _on_client_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    return JSONResponse(_body_for(request, error), status_code=500)
