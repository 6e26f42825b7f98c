"""The one table from kvreg's errors to HTTP: status, OpenAI body, headers.

Owns how every failure looks to a client, also those of the framework (unknown routes, wrong
methods, our own bugs). It decides nothing about when something fails.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
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

# What nginx calls it; nobody is left to read it.
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
    errors.NotFound: ErrorShape(404, _INVALID),
    errors.SessionNotFound: ErrorShape(404, _INVALID),
    errors.ModelNotFound: ErrorShape(404, _INVALID),
    errors.Gone: ErrorShape(410, _INVALID),
    errors.SessionExpired: ErrorShape(410, _INVALID),
    errors.Conflict: ErrorShape(409, _INVALID),
    errors.SessionBusy: ErrorShape(409, _INVALID),
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

# Statuses that promise a client that trying again makes sense.
_RETRY_STATUSES = (429, 503)
_DEFAULT_RETRY_AFTER_S = 1.0

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def shape_of(error: errors.KvregError) -> ErrorShape:
    """Return the row of the nearest class that the table names."""
    return next(ERROR_TABLE[cls] for cls in type(error).__mro__ if cls in ERROR_TABLE)


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    """Build OpenAI's error body, which every error of every route has."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: Exception) -> dict[str, Any]:
    """Build the body of any failure; a bug shows its name and nothing of its inside."""
    if isinstance(error, errors.KvregError):
        param = error.fields.get("param")
        return error_body(
            error.message,
            kind=shape_of(error).type,
            code=error.code,
            param=None if param is None else str(param),
        )
    return error_body(
        f"the server failed on this request ({type(error).__name__}); the log says more",
        kind=_SERVER,
        code="internal_error",
    )


def response_to(error: errors.KvregError) -> JSONResponse:
    """Build the whole response, with Retry-After where trying again makes sense."""
    shape = shape_of(error)
    headers = {}
    if shape.status in _RETRY_STATUSES:
        retry_after_s = getattr(error, "retry_after_s", _DEFAULT_RETRY_AFTER_S)
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    if shape.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body_of(error), status_code=shape.status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Give every failure of the application OpenAI's body."""
    app.add_exception_handler(errors.KvregError, _on_kvreg_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, _on_bug)


async def _on_kvreg_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.KvregError)
    if shape_of(error).status == 500:
        _logger.error("a request failed", exc_info=error, extra={"fields": {"code": error.code}})
    return response_to(error)


async def _on_invalid_parameter(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return response_to(errors.UnprocessableBody(f"{name}: {first['msg']}", param=name))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    code = _HTTP_CODES.get(error.status_code, "http_error")
    body = error_body(message, kind=_INVALID, code=code)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_bug(_request: Request, error: Exception) -> Response:
    return JSONResponse(body_of(error), status_code=500)
