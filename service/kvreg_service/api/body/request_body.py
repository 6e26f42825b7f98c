"""Reads a JSON body within a limit and turns it into a typed model, or says what is wrong with it.

Owns the difference between a malformed body (422: it has another shape) and one that asks for
what is not served (400: the shape is right, a value is not). Used instead of the framework's own
parsing, which reads bodies of any size and reports both cases alike.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from starlette.requests import Request

from kvreg_service.core.errors import BodyTooLarge, InvalidRequest, UnprocessableBody

UNSUPPORTED = "unsupported_value"

# Pydantic's error types for a value of the right type that lies outside what is served.
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
# Pydantic puts the tag of a union's member into a location; ours look like <this>.
_TAG_MARK = "<"


class RequestBody(BaseModel):
    """Base of all bodies: JSON types are not converted, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=RequestBody)


def unsupported(message: str, **values: Any) -> PydanticCustomError:
    """Build the error of a validator that refuses a well-formed value; the status will be 400."""
    return PydanticCustomError(UNSUPPORTED, message, values or None)


async def read_body(request: Request, model: type[BodyT], *, max_bytes: int) -> BodyT:
    """Read and validate the body of one request.

    Raises:
        BodyTooLarge: It has, or announces, more than ``max_bytes``; the rest is not read.
        UnprocessableBody: It is not JSON, or not of the shape of ``model``.
        InvalidRequest: The shape is right and a value is not served.
    """
    content_type = request.headers.get("content-type", "application/json")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnprocessableBody(
            f"the content type is {media_type[:_MAX_SHOWN_CHARACTERS]!r}; "
            "this route reads application/json"
        )
    raw = await _read_raw(request, max_bytes)
    try:
        return model.model_validate_json(raw)
    except ValidationError as err:
        raise _describe(err) from None


async def _read_raw(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is longer than the {max_bytes} bytes that are read", max_body_bytes=max_bytes
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
    # Text of a conversation never appears in an error: only short scalars of other fields do.
    if isinstance(item["input"], bool | int | float) or (
        isinstance(item["input"], str) and not name.startswith(_CONVERSATION) and name
    ):
        # As JSON, which tells the text "5" from the number.
        value = json.dumps(item["input"], ensure_ascii=False)
        shown = f" (got {value[:_MAX_SHOWN_CHARACTERS]})"
    return (f"{name}: " if name else "") + item["msg"] + shown


def _name_of(item: ErrorDetails) -> str:
    parts = [str(part) for part in item["loc"]]
    return ".".join(part for part in parts if not part.startswith(_TAG_MARK))
