"""A streaming parser that finds tool calls in generated text.

Owns where a call begins and ends, and which white space around it belongs to the markup: the line
breaks before and after. Nothing is lost: anything that is not a complete call is text, so an answer
that explains the format, contains half a call or is truncated is passed through unchanged. A call
is emitted only when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg_service.chat.output.partial_match import partial_suffix_len
from kvreg_service.chat.tool_calls.argument_types import ArgumentTypes
from kvreg_service.chat.tool_calls.syntax import CallReader, ReadCall, Unread
from kvreg_service.chat.tool_calls.tool_call import ToolCall

CALL_OPEN = "<tool_call>"
# A model that generates only line breaks must not stall the stream.
_MAX_LINE_BREAKS = 8

Part = str | ToolCall


class ToolCallParser:
    """Parses one answer without its reasoning. Buffers text that may begin a call."""

    def __init__(self, tools: Sequence[Mapping[str, object]]) -> None:
        self._types = ArgumentTypes(tools)
        self._held = ""
        # For the call whose opener is the first one in ``_held``.
        self._reader = CallReader(self._types)
        self._has_text = False
        # The line breaks since the last call; None if text has followed it, or there was no call.
        self._gap: str | None = None

    def push(self, text: str) -> list[Part]:
        """Add the next piece of text and return the parts that are final, in order."""
        self._held += text
        return self._advance(is_end=False)

    def flush(self) -> list[Part]:
        """End the answer and return the rest: what was buffered is text."""
        return self._advance(is_end=True)

    def _advance(self, *, is_end: bool) -> list[Part]:
        parts: list[Part] = []
        while (start := self._held.find(CALL_OPEN)) >= 0:
            end = start + len(CALL_OPEN)
            read = self._reader.read(self._held, end)
            if isinstance(read, ReadCall):
                self._take_text(_without_breaks(self._held[:start]), parts)
                parts.append(read.call)
                self._gap = ""
                end += read.length
            elif read is Unread.OPEN and not is_end:
                self._release(start, parts)
                return parts
            else:
                self._take_text(self._held[:end], parts)
            self._held = self._held[end:]
            self._reader = CallReader(self._types)
        num_held = 0 if is_end else partial_suffix_len(self._held, CALL_OPEN)
        self._release(len(self._held) - num_held, parts, is_end=is_end)
        return parts

    def _release(self, end: int, parts: list[Part], *, is_end: bool = False) -> None:
        """Emit the buffered text up to ``end``, except line breaks that may precede a call."""
        text = self._held[:end]
        if not is_end:
            text = _without_breaks(text)
        self._held = self._held[len(text) :]
        self._take_text(text, parts)

    def _take_text(self, text: str, parts: list[Part]) -> None:
        if self._gap is not None:
            after = text.lstrip("\n")
            self._gap += text[: len(text) - len(after)]
            if not after:
                return
            text = f"{self._gap}{after}" if self._has_text else after
            self._gap = None
        if text:
            self._has_text = True
            parts.append(text)


def _without_breaks(text: str) -> str:
    """Return the text without the trailing line breaks that would belong to a call."""
    num_breaks = len(text) - len(text.rstrip("\n"))
    return text[: len(text) - min(num_breaks, _MAX_LINE_BREAKS)]


def parse_answer(text: str, tools: Sequence[Mapping[str, object]]) -> tuple[str, list[ToolCall]]:
    """Parse a complete answer and return its content and its calls."""
    parser = ToolCallParser(tools)
    parts = [*parser.push(text), *parser.flush()]
    content = "".join(part for part in parts if isinstance(part, str))
    return content, [part for part in parts if isinstance(part, ToolCall)]
