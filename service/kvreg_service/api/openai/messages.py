"""The messages of a chat completion request.

Owns types only: a wrong type is a malformed body. ``chat.messages`` validates roles and parts, and
converts the messages to those that templates read.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from kvreg_service.api.body.request_body import RequestBody


class ContentPart(RequestBody):
    """A part of a message. Only text is supported."""

    type: str = Field(json_schema_extra={"enum": ["text", "input_text", "output_text"]})
    text: str | None = None


def _kind_of_content(value: object) -> str:
    return "<parts>" if isinstance(value, list) else "<text>"


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[ContentPart], Tag("<parts>")],
    Discriminator(_kind_of_content),
]


class FunctionCall(RequestBody):
    """The name and arguments of a tool call: a JSON string, or the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(RequestBody):
    """A tool call of an earlier answer."""

    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ChatMessage(RequestBody):
    """A message of the conversation.

    ``cache_anchor`` marks the conversation up to this message as a prefix that others share.
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
