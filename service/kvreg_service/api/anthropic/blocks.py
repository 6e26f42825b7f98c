"""The messages of the Messages API, and their conversion to chat messages.

Owns which blocks are supported where. Both APIs convert to the same chat messages, so a session may
switch between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from kvreg_service.api.body.request_body import RequestBody
from kvreg_service.core.errors import InvalidRequest

ChatDict = dict[str, Any]

# Some client libraries put it before their system prompt, with a new value for each request. It
# would change the prefix of every prompt.
_BILLING_HEADER = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


class CacheControl(RequestBody):
    """Marks the end of a prefix that others share. ``cache_ttl_s`` sets its time to live."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class MarkableBlock(RequestBody):
    """A block or tool with an optional mark."""

    cache_control: CacheControl | None = None


class TextBlock(MarkableBlock):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(RequestBody):
    """Reasoning of an earlier answer. Its signature is ignored."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(RequestBody):
    """Encrypted reasoning of another server. Ignored."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(MarkableBlock):
    """A tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]


class OtherBlock(RequestBody):
    """A block of an unsupported type, such as an image."""

    type: str


class ToolResultBlock(MarkableBlock):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: BlockContent | None = None


def _kind_of_block(value: object) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return f"<{kind}>" if isinstance(kind, str) and kind in _SUPPORTED_TYPES else "<other>"


_SUPPORTED_TYPES = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})

Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[OtherBlock, Tag("<other>")],
    Discriminator(_kind_of_block),
]


def _kind_of_content(value: object) -> str:
    return "<blocks>" if isinstance(value, list) else "<text>"


BlockContent = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[Block], Tag("<blocks>")],
    Discriminator(_kind_of_content),
]


class Message(RequestBody):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: BlockContent


@dataclass(frozen=True)
class MarkedMessage:
    """A chat message, with the marks of the blocks that it was converted from.

    ``is_marked`` is a mark at its end; ``marked_at`` are marks within its text, as character
    offsets.
    """

    message: ChatDict
    is_marked: bool = False
    marked_at: tuple[int, ...] = ()


def chat_messages(system: BlockContent | None, messages: Iterable[Message]) -> list[MarkedMessage]:
    """Convert a conversation to chat messages, the system prompt first.

    Raises:
        InvalidRequest: A block is not supported in its place; ``param`` names it.
    """
    result: list[MarkedMessage] = []
    if system is not None:
        prompt = _system(system, "system")
        # Some clients send an empty system prompt.
        result += [prompt] if prompt.message["content"] else []
    for i, message in enumerate(messages):
        place = f"messages[{i}].content"
        match message.role:
            case "system":
                result.append(_system(message.content, place))
            case "assistant":
                result.append(_assistant(message.content, place))
            case "user":
                result += _user(message.content, place)
    return result


def count_marks(content: BlockContent | None) -> int:
    """Count the marked blocks, including those in tool results."""
    if content is None or isinstance(content, str):
        return 0
    inner = sum(
        count_marks(block.content) for block in content if isinstance(block, ToolResultBlock)
    )
    return inner + sum(_has_mark(block) for block in content)


def _has_mark(block: Block) -> bool:
    return isinstance(block, MarkableBlock) and block.cache_control is not None


def _system(content: BlockContent, place: str) -> MarkedMessage:
    texts = [content] if isinstance(content, str) else _texts(content, place)
    message = {"role": "system", "content": "".join(_BILLING_HEADER.sub("", x) for x in texts)}
    return MarkedMessage(message, count_marks(content) > 0)


def _assistant(content: BlockContent, place: str) -> MarkedMessage:
    if isinstance(content, str):
        return MarkedMessage({"role": "assistant", "content": content})
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ChatDict] = []
    for j, block in enumerate(content):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case RedactedThinkingBlock():
                pass
            case _:
                raise _unsupported(block, f"{place}[{j}]", "in an assistant message")
    message: ChatDict = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return MarkedMessage(message, count_marks(content) > 0)


def _user(content: BlockContent, place: str) -> list[MarkedMessage]:
    """One chat message for consecutive text blocks, and one for each tool result."""
    if isinstance(content, str):
        return [MarkedMessage({"role": "user", "content": content})]
    result: list[MarkedMessage] = []
    for j, block in enumerate(content):
        is_marked = count_marks([block]) > 0
        match block:
            case TextBlock():
                before = MarkedMessage({"role": "user", "content": ""})
                if result and result[-1].message["role"] == "user":
                    before = result.pop()
                text_before = before.message["content"]
                marked_at = before.marked_at
                if before.is_marked:
                    marked_at += (len(text_before),)
                merged = {"role": "user", "content": text_before + block.text}
                result.append(MarkedMessage(merged, is_marked, marked_at))
            case ToolResultBlock():
                text = block.content or ""
                if not isinstance(text, str):
                    text = "".join(_texts(text, f"{place}[{j}].content"))
                message = {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
                result.append(MarkedMessage(message, is_marked))
            case _:
                raise _unsupported(block, f"{place}[{j}]", "in a user message")
    return result or [MarkedMessage({"role": "user", "content": ""})]


def _texts(blocks: Sequence[Block], place: str) -> list[str]:
    texts: list[str] = []
    for j, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise _unsupported(block, f"{place}[{j}]", "here")
        texts.append(block.text)
    return texts


def _unsupported(block: Block, place: str, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place}.type: '{block.type[:60]}' is not supported {where}; "
        "supported are text, tool calls and tool results",
        param=f"{place}.type",
    )
