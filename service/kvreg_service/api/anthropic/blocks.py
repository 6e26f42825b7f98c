"""The messages of the Messages API: their shapes, and how they become those of a chat.

Owns which blocks are served where. Both APIs give the prompt the same messages, so a conversation
that moves from the one to the other stays the same conversation.
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

# Some client libraries put it before their system prompt, with a value that is new each time: it
# is about the request and no part of what the model should read.
_BILLING_HEADER = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


class CacheControl(RequestBody):
    """A mark: others will begin alike up to here. How long it is kept is up to ``cache_ttl_s``."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class MarkableBlock(RequestBody):
    """What may carry a mark."""

    cache_control: CacheControl | None = None


class TextBlock(MarkableBlock):
    """Some text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(RequestBody):
    """Reasoning of an earlier answer. Its signature is not looked at."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(RequestBody):
    """Reasoning that another server hid; nothing of it can be read here."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(MarkableBlock):
    """One call that an earlier answer made."""

    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]


class OtherBlock(RequestBody):
    """A block of a kind that is not served, such as an image."""

    type: str


class ToolResultBlock(MarkableBlock):
    """What a call came to."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: BlockContent | None = None


def _kind_of_block(value: object) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return f"<{kind}>" if isinstance(kind, str) and kind in _SERVED else "<other>"


_SERVED = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})

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
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: BlockContent


@dataclass(frozen=True)
class Said:
    """One message of a chat, and where blocks that became part of it carry marks.

    ``is_marked`` is a mark behind all of it; ``marked_at`` are marks inside of its text, behind so
    many characters.
    """

    message: ChatDict
    is_marked: bool = False
    marked_at: tuple[int, ...] = ()


def chat_messages(system: BlockContent | None, messages: Iterable[Message]) -> list[Said]:
    """The same conversation as messages of a chat, the system prompt first.

    Raises:
        InvalidRequest: A block is of a kind that is not served in its place; ``param`` names it.
    """
    result: list[Said] = []
    if system is not None:
        prompt = _system(system, "system")
        # Some clients send the field whether they have something to say or not.
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
    """Count the blocks that carry a mark, those inside of results included."""
    if content is None or isinstance(content, str):
        return 0
    inner = sum(
        count_marks(block.content) for block in content if isinstance(block, ToolResultBlock)
    )
    return inner + sum(_has_mark(block) for block in content)


def _has_mark(block: Block) -> bool:
    return isinstance(block, MarkableBlock) and block.cache_control is not None


def _system(content: BlockContent, place: str) -> Said:
    texts = [content] if isinstance(content, str) else _texts(content, place)
    message = {"role": "system", "content": "".join(_BILLING_HEADER.sub("", x) for x in texts)}
    return Said(message, count_marks(content) > 0)


def _assistant(content: BlockContent, place: str) -> Said:
    if isinstance(content, str):
        return Said({"role": "assistant", "content": content})
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
                raise _unserved(block, f"{place}[{j}]", "in an answer")
    message: ChatDict = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return Said(message, count_marks(content) > 0)


def _user(content: BlockContent, place: str) -> list[Said]:
    """One message, or several: each result of a tool is a message of its own."""
    if isinstance(content, str):
        return [Said({"role": "user", "content": content})]
    result: list[Said] = []
    for j, block in enumerate(content):
        is_marked = count_marks([block]) > 0
        match block:
            case TextBlock():
                before = Said({"role": "user", "content": ""})
                if result and result[-1].message["role"] == "user":
                    before = result.pop()
                said_before = before.message["content"]
                marked_at = before.marked_at
                if before.is_marked:
                    marked_at += (len(said_before),)
                text = said_before + block.text
                result.append(Said({"role": "user", "content": text}, is_marked, marked_at))
            case ToolResultBlock():
                said = block.content or ""
                text = (
                    said
                    if isinstance(said, str)
                    else "".join(_texts(said, f"{place}[{j}].content"))
                )
                message = {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
                result.append(Said(message, is_marked))
            case _:
                raise _unserved(block, f"{place}[{j}]", "in a message of a user")
    return result or [Said({"role": "user", "content": ""})]


def _texts(blocks: Sequence[Block], place: str) -> list[str]:
    texts: list[str] = []
    for j, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise _unserved(block, f"{place}[{j}]", "here")
        texts.append(block.text)
    return texts


def _unserved(block: Block, place: str, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place}.type is '{block.type[:60]}', which is not served {where}; "
        "this model reads text, and the calls and results of tools",
        param=f"{place}.type",
    )
