"""The two ways in which Qwen models write a tool call between ``<tool_call>`` and its end.

The one names the function and its parameters in tags, each value on lines of its own, and was
trained into Qwen3-Coder and Qwen3.5. The other is a JSON object, as Qwen2.5 and Qwen3 write it.
Owns the grammar of one call; finding calls in an answer is `tool_call_parser`'s.

    <function=name>                              {"name": "name", "arguments": {"key": "value"}}
    <parameter=key>
    value
    </parameter>
    </function>
"""

from __future__ import annotations

import re
from enum import Enum, auto

from kvreg_service.chat.argument_types import ArgumentTypes, load_json
from kvreg_service.chat.tool_call import ToolCall

_FUNCTION = "<function="
_HEAD = re.compile(r"\s*<function=([^<>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?")
# A value may hold the tag that ends it: only followed by what comes next in a call is it the end.
_VALUE_END = re.compile(r"\n?</parameter>\s*(?=<parameter=|</function>|</tool_call>|\Z)")
_TAIL = re.compile(r"</function>\s*\Z")
# Such a line is rather the next parameter, with the end of this one forgotten.
_NESTED = re.compile(r"^<parameter=", re.MULTILINE)
# As much as holds whole strings only; what is left begins within one.
_WHOLE_STRINGS = re.compile(r'(?:[^"]|"(?:[^"\\]|\\.)*")*', re.DOTALL)


class Incomplete(Enum):
    """Why a text is no call."""

    OPEN = auto()
    """It ends inside a value: what was taken for the end of the call belongs to it."""
    MALFORMED = auto()
    """Nothing that follows can make it a call."""


def may_begin_call(text: str) -> bool:
    """Whether a call can begin with ``text``."""
    start = text.lstrip()
    return start.startswith(("{", _FUNCTION)) or _FUNCTION.startswith(start)


def read_call(text: str, types: ArgumentTypes) -> ToolCall | Incomplete:
    """Read the text between the two markers of a call."""
    if text.lstrip().startswith("{"):
        return _read_json(text)
    return _read_tags(text, types)


def _read_tags(text: str, types: ArgumentTypes) -> ToolCall | Incomplete:
    head = _HEAD.match(text)
    if head is None:
        return Incomplete.MALFORMED
    name, position = head[1].strip(), head.end()
    arguments: dict[str, object] = {}
    while (parameter := _PARAMETER.match(text, position)) is not None:
        end = _VALUE_END.search(text, parameter.end())
        if end is None:
            return Incomplete.OPEN
        key, value = parameter[1].strip(), text[parameter.end() : end.start()]
        if key in arguments or _NESTED.search(value):
            return Incomplete.MALFORMED
        arguments[key] = types.parse(name, key, value)
        position = end.end()
    return ToolCall(name, arguments) if _TAIL.match(text, position) else Incomplete.MALFORMED


def _read_json(text: str) -> ToolCall | Incomplete:
    try:
        call = load_json(text)
    except ValueError:
        whole = _WHOLE_STRINGS.match(text)
        is_in_string = whole is not None and whole.end() < len(text)
        return Incomplete.OPEN if is_in_string else Incomplete.MALFORMED
    if not isinstance(call, dict) or not call.keys() <= {"name", "arguments"}:
        return Incomplete.MALFORMED
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return Incomplete.MALFORMED
    return ToolCall(name, arguments)
