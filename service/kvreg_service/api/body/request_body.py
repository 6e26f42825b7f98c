"""Reads a JSON body within a limit and validates it against a pydantic model.

Owns the difference between a malformed body (422: a type is wrong or a field is missing) and an
unsupported value (400: the types are right). Used instead of FastAPI's own parsing, which reads
bodies of any size and reports both cases as 422.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from starlette.requests import Request

from kvreg_service.core.errors import BodyTooLarge, InvalidRequest, UnprocessableBody

UNSUPPORTED = "unsupported_value"

# Pydantic's error types for a value of the right type that is not supported.
_VALUE_ERRORS = frozenset(
    {
        UNSUPPORTED,
        "enum",
        "finite_number",
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "literal_error",
        "string_too_long",
        "string_too_short",
        "too_long",
        "too_short",
    }
)
_MAX_REPORTED = 5
_MAX_SHOWN_CHARACTERS = 60
_CONVERSATION = ("messages", "system")
# Pydantic includes the tag of a union's member in the location; ours look like <text>.
_TAG_MARK = "<"


class RequestBody(BaseModel):
    """Base of all bodies: JSON types are not converted, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=RequestBody)


def unsupported(message: str, **values: Any) -> PydanticCustomError:
    """Build the error of a validator for an unsupported value; it results in status 400."""
    return PydanticCustomError(UNSUPPORTED, message, values or None)


async def read_body(request: Request, model: type[BodyT], *, max_bytes: int) -> BodyT:
    """Read and validate the body of one request.

    Raises:
        BodyTooLarge: The body or its Content-Length exceeds ``max_bytes``; the rest is not read.
        UnprocessableBody: It is not JSON, or a field is missing or has the wrong type.
        InvalidRequest: A value is not supported.
    """
    content_type = request.headers.get("content-type", "application/json")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnprocessableBody(
            f"content type {media_type[:_MAX_SHOWN_CHARACTERS]!r} is not supported; "
            "send application/json"
        )
    raw = await _read_raw(request, max_bytes)
    try:
        return model.model_validate_json(raw)
    except ValidationError as err:
        raise _describe(err) from None


async def _read_raw(request: Request, max_bytes: int) -> bytes:
    content_length = request.headers.get("content-length", "0")
    if content_length.isdecimal() and int(content_length) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body exceeds the limit of {max_bytes} bytes", max_body_bytes=max_bytes
    )


def _describe(error: ValidationError) -> InvalidRequest:
    details = error.errors(include_url=False, include_context=False)
    malformed = [item for item in details if item["type"] not in _VALUE_ERRORS]
    reported = malformed or details
    message = "; ".join(_describe_one(item) for item in reported[:_MAX_REPORTED])
    if len(reported) > _MAX_REPORTED:
        message += f"; and {len(reported) - _MAX_REPORTED} more"
    error_class = UnprocessableBody if malformed else InvalidRequest
    return error_class(message, param=_name_of(reported[0]) or None)


def _describe_one(item: ErrorDetails) -> str:
    name = _name_of(item)
    shown = ""
    # Errors show numbers and flags, and strings only of fields that hold no conversation text.
    if isinstance(item["input"], bool | int | float) or (
        isinstance(item["input"], str) and not name.startswith(_CONVERSATION) and name
    ):
        # As JSON, so that the string "5" differs from the number 5.
        value = json.dumps(item["input"], ensure_ascii=False)
        shown = f" (got {value[:_MAX_SHOWN_CHARACTERS]})"
    return (f"{name}: " if name else "") + item["msg"] + shown


def _name_of(item: ErrorDetails) -> str:
    parts = [str(part) for part in item["loc"]]
    return ".".join(part for part in parts if not part.startswith(_TAG_MARK))
