"""The shape of the messages in a chat completion request.

Owns types only. What a message may contain, and the one form that templates read, is decided by
``chat.messages``; so a wrong type is a malformed body, and a wrong role or part a refused value.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from kvreg_service.api.body.request_body import RequestBody


class ContentPart(RequestBody):
    """One part of a message. Only parts of text are served."""

    type: str = Field(json_schema_extra={"enum": ["text", "input_text", "output_text"]})
    text: str | None = None


def _kind_of_content(value: object) -> str:
    return "<parts>" if isinstance(value, list) else "<text>"


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[ContentPart], Tag("<parts>")],
    Discriminator(_kind_of_content),
]


class FunctionCall(RequestBody):
    """The name and the arguments of a call: a JSON text, or the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(RequestBody):
    """One call that an earlier answer made."""

    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ChatMessage(RequestBody):
    """One message of the conversation, as clients write it or echo it.

    ``cache_anchor`` asks that the conversation up to here be kept for others that begin alike.
    """

    role: str = Field(
        json_schema_extra={"enum": ["system", "developer", "user", "assistant", "tool"]}
    )
    content: Content | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    cache_anchor: bool | None = None
