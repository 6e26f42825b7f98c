"""The two formats in which Qwen models write a tool call after ``<tool_call>``.

The first names the function and its parameters in tags, each value on its own lines (Qwen3-Coder,
Qwen3.5). The second is a JSON object (Qwen2.5, Qwen3). Owns the grammar of one call; `parser` finds
calls in an answer.

    <function=name>                              {"name": "name", "arguments": {"key": "value"}}
    <parameter=key>
    value
    </parameter>
    </function>

Both are parsed incrementally: a long value is not scanned again with each piece of text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from kvreg_service.chat.tool_calls.argument_types import ArgumentTypes, load_json
from kvreg_service.chat.tool_calls.tool_call import ToolCall

CALL_CLOSE = "</tool_call>"

_FUNCTION = "<function="
_PARAMETER = "<parameter="
_FUNCTION_END = "</function>"
_PARAMETER_END = "</parameter>"

# White space between tags; the limit bounds the search.
_GAP = r"\s{0,16}"
_HEAD = re.compile(rf"{_GAP}{_FUNCTION}([^<>\n]+)>")
_HEAD_SO_FAR = re.compile(rf"{_GAP}{_FUNCTION}[^<>\n]*\Z")
# The line break after it belongs to the markup, so the next character must be known.
_OPENED = re.compile(rf"{_GAP}{_PARAMETER}([^<>\n]+)>(?:\n|(?=.))")
_OPENED_SO_FAR = re.compile(rf"{_GAP}{_PARAMETER}[^<>\n]*>?\Z")
_CLOSED = re.compile(rf"{_GAP}{_FUNCTION_END}{_GAP}{CALL_CLOSE}")
# A value may contain its own end tag: the tag ends it only if the next part of a call follows.
_VALUE_END = re.compile(rf"{_PARAMETER_END}{_GAP}(?={_PARAMETER}|{_FUNCTION_END}|{CALL_CLOSE})")
# The longest text that may still turn out to be the end of a value.
_LONGEST_VALUE_END = len(_PARAMETER_END) + 16 + len(CALL_CLOSE)
# Such a line is more likely the next parameter, with the end tag of this one missing.
_NESTED = re.compile(rf"^{_PARAMETER}", re.MULTILINE)

_IN_STRING = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_BETWEEN_STRINGS = re.compile(r'[^"<]*')


class Unread(Enum):
    """Why a text is not a call."""

    OPEN = auto()
    """It may become one with more text."""
    MALFORMED = auto()
    """It cannot become one."""


@dataclass(frozen=True)
class ReadCall:
    """A call, and the length of its text in characters, including the closing marker."""

    call: ToolCall
    length: int


class CallReader:
    """Parses one call. Each call of ``read`` gets the same text with more appended."""

    def __init__(self, types: ArgumentTypes) -> None:
        self._types = types
        self._reader: _TagReader | _JsonReader | None = None

    def read(self, text: str, start: int) -> ReadCall | Unread:
        """Continue parsing the call that begins at ``start``, after the opening marker."""
        if self._reader is None:
            beginning = text[start : start + 32].lstrip()
            if not beginning:
                return Unread.OPEN if len(text) - start < 32 else Unread.MALFORMED
            self._reader = _JsonReader() if beginning[0] == "{" else _TagReader(self._types)
        return self._reader.read(text, start)


class _TagReader:
    """Parses the format with tags. Positions are relative to the start of the call."""

    def __init__(self, types: ArgumentTypes) -> None:
        self._types = types
        self._name: str | None = None
        self._arguments: dict[str, object] = {}
        self._position = 0
        self._key: str | None = None
        self._num_searched = 0

    def read(self, text: str, start: int) -> ReadCall | Unread:
        if self._name is None:
            head = _HEAD.match(text, start)
            if head is None:
                return _open_if(text, start, _HEAD_SO_FAR, _FUNCTION)
            self._name, self._position = head[1].strip(), head.end() - start
        while True:
            if self._key is None:
                closed = _CLOSED.match(text, start + self._position)
                if closed is not None:
                    call = ToolCall(self._name, self._arguments)
                    return ReadCall(call, closed.end() - start)
                opened = _OPENED.match(text, start + self._position)
                if opened is None:
                    return self._between(text, start + self._position)
                self._key = opened[1].strip()
                if self._key in self._arguments:
                    return Unread.MALFORMED
                self._position = self._num_searched = opened.end() - start
            end = _VALUE_END.search(text, start + self._num_searched)
            if end is None:
                searched = len(text) - start - _LONGEST_VALUE_END
                self._num_searched = max(self._position, searched)
                return Unread.OPEN
            value = text[start + self._position : end.start()].removesuffix("\n")
            if _NESTED.search(value):
                return Unread.MALFORMED
            self._arguments[self._key] = self._types.parse(self._name, self._key, value)
            self._key, self._position = None, end.end() - start

    def _between(self, text: str, position: int) -> Unread:
        is_open = _open_if(text, position, _OPENED_SO_FAR, _PARAMETER) is Unread.OPEN
        rest = text[position : position + 64].lstrip()
        if rest.startswith(_FUNCTION_END):
            rest = rest.removeprefix(_FUNCTION_END).lstrip()
            is_open = CALL_CLOSE.startswith(rest)
        return Unread.OPEN if is_open or _FUNCTION_END.startswith(rest) else Unread.MALFORMED


class _JsonReader:
    """Parses the JSON format, which ends at the first closing marker outside a string."""

    def __init__(self) -> None:
        self._position = 0
        self._is_in_string = False

    def read(self, text: str, start: int) -> ReadCall | Unread:
        while True:
            pattern = _IN_STRING if self._is_in_string else _BETWEEN_STRINGS
            matched = pattern.match(text, start + self._position)
            end = start + self._position if matched is None else matched.end()
            self._position = end - start
            # Inside a string the text may end with a backslash.
            if end == len(text) or (self._is_in_string and text[end] == "\\"):
                return Unread.OPEN
            if text[end] == '"':
                self._is_in_string = not self._is_in_string
                self._position += 1
            elif text.startswith(CALL_CLOSE, end):
                return _read_json(text[start:end], end + len(CALL_CLOSE) - start)
            else:
                is_open = CALL_CLOSE.startswith(text[end : end + len(CALL_CLOSE)])
                return Unread.OPEN if is_open else Unread.MALFORMED


def _open_if(text: str, position: int, so_far: re.Pattern[str], tag: str) -> Unread:
    """Whether the text at a position may become a tag that starts with ``so_far``."""
    rest = text[position : position + 64].lstrip()
    may_be = tag.startswith(rest) or so_far.match(text, position) is not None
    return Unread.OPEN if may_be else Unread.MALFORMED


def _read_json(text: str, length: int) -> ReadCall | Unread:
    try:
        call = load_json(text)
    except ValueError:
        return Unread.MALFORMED
    if not isinstance(call, dict) or not call.keys() <= {"name", "arguments"}:
        return Unread.MALFORMED
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return Unread.MALFORMED
    return ReadCall(ToolCall(name, arguments), length)
