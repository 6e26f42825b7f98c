"""Validates the messages of a request and normalizes them to the form that templates expect.

Owns the accepted shapes (content as text, as parts, or absent next to tool calls) and how each is
normalized. All other fields are dropped, so metadata that a client library adds does not change
the rendered prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kvreg_service.core.errors import InvalidRequest

Message = dict[str, object]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def normalize_messages(messages: object) -> list[Message]:
    """Return the messages with text content, ``developer`` as ``system``, tool arguments parsed.

    Raises:
        InvalidRequest: A message has a shape that cannot be rendered; ``param`` is its path.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequest("messages is not a list", param="messages")
    if not messages:
        raise InvalidRequest("messages is empty; at least one is needed", param="messages")
    return [_normalize(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalize(message: object, place: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{place} is not an object", param=place)
    given = message.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise InvalidRequest(
            f"{place}.role is {given!r}; known roles are {', '.join(_ROLES)}",
            param=f"{place}.role",
        )
    result: Message = {"role": role}
    calls = None
    if role == "assistant":
        calls = _tool_calls(message.get("tool_calls"), f"{place}.tool_calls")
    # Only an assistant message may omit its content; it may consist of tool calls.
    is_optional = role == "assistant"
    result["content"] = _text(message.get("content"), f"{place}.content", is_optional=is_optional)
    if role == "assistant":
        reasoning = _reasoning(message, place)
        if reasoning is not None:
            result["reasoning_content"] = reasoning
    if calls:
        result["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    return result


def _text(content: object, place: str, *, is_optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and is_optional:
        return ""
    if not isinstance(content, Sequence):
        kind = "null or missing" if content is None else f"of type {type(content).__name__}"
        raise InvalidRequest(
            f"{place} is {kind}; a string or a list of text parts is needed", param=place
        )
    return "".join(_part(part, f"{place}[{j}]") for j, part in enumerate(content))


def _part(part: object, place: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{place} is not an object", param=place)
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{place}.type is {kind!r}; this model reads text parts only", param=f"{place}.type"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}.text is not a string", param=f"{place}.text")
    return text


def _reasoning(message: Mapping[str, object], place: str) -> str | None:
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            raise InvalidRequest(f"{place}.{name} is not a string", param=f"{place}.{name}")
    return None


def _tool_calls(calls: object, place: str) -> list[dict[str, object]]:
    if calls is None:
        return []
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidRequest(f"{place} is not a list", param=place)
    return [_tool_call(call, f"{place}[{j}]") for j, call in enumerate(calls)]


def _tool_call(call: object, place: str) -> dict[str, object]:
    if not isinstance(call, Mapping):
        raise InvalidRequest(f"{place} is not an object", param=place)
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{place}.function is not an object", param=f"{place}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"{place}.function.name is not a string", param=f"{place}.function.name"
        )
    arguments = parse_arguments(function.get("arguments"))
    result: dict[str, object] = {
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if isinstance(call.get("id"), str):
        result["id"] = call["id"]
    return result


def parse_arguments(arguments: object) -> dict[str, object]:
    """Return the arguments of a tool call as a mapping, which templates iterate over.

    Clients send them as a JSON string. Missing or blank arguments are an empty mapping. Anything
    that is not a JSON object is kept under the single key ``arguments``: a malformed call that the
    model generated must stay in the history, and must not fail every later turn.
    """
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = arguments
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()}
    return {"arguments": value}
