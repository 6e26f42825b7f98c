"""The types of tool arguments, from the JSON schemas of the tools in a request.

Some tool call formats write every value as bare text: only the schema says whether ``3`` is a
number or a string. This module reads the types of a schema and nothing else. It does not validate
ranges, patterns or required keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

# Models that were trained on Python sometimes write its constants.
_PYTHON_CONSTANTS: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
# Schemas may be recursive.
_MAX_DEPTH = 8


class ArgumentTypes:
    """The argument schemas of a list of tools in OpenAI's format. Stateless."""

    def __init__(self, tools: Sequence[Mapping[str, object]]) -> None:
        self._schemas: dict[str, Mapping[str, object]] = {}
        for tool in tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                schema = function.get("parameters")
                self._schemas[function["name"]] = schema if isinstance(schema, Mapping) else {}

    def parse(self, tool: str, key: str, text: str) -> object:
        """Return the value of ``text``: a string unless the schema requires another type.

        Text that is not JSON of a type that the schema allows is a string as well.
        """
        schema = self._schemas.get(tool, {})
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or key not in properties:
            return text
        types = _types_of(properties[key], schema, _MAX_DEPTH)
        if "string" in types:
            # Where strings are allowed, only null is read as something else.
            return None if "null" in types and text.strip() == "null" else text
        return _parse(text, types)


def load_json(text: str) -> object:
    """Parse JSON strictly: constants that JSON does not have, such as NaN, are rejected.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or contains a lone surrogate, which
            cannot be encoded in a response.
    """
    try:
        value = json.loads(text, parse_constant=_reject)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # A surrogate can occur only as an escape; the check is free for texts without one.
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _reject(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _parse(text: str, types: frozenset[str]) -> object:
    if not types:
        return text
    stripped = text.strip()
    if stripped in _PYTHON_CONSTANTS:
        value: object = _PYTHON_CONSTANTS[stripped]
    else:
        try:
            value = load_json(stripped)
        except ValueError:
            return text
    return value if _is_of(value, types) else text


def _is_of(value: object, types: frozenset[str]) -> bool:
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return bool(types & {"integer", "number"})
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case list():
            return "array" in types
        case dict():
            return "object" in types
        case _:
            return False


def _types_of(schema: object, root: Mapping[str, object], depth: int) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, Mapping) or depth == 0:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    if isinstance(schema.get("$ref"), str):
        return _types_of(_resolve(schema["$ref"], root), root, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        members = schema.get(key)
        if isinstance(members, list):
            return frozenset().union(*(_types_of(one, root, depth - 1) for one in members))
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if isinstance(values, list):
        return frozenset(_type_of(value) for value in values)
    return frozenset()


def _resolve(reference: object, root: Mapping[str, object]) -> object:
    """Return the part of the schema that a local reference (``#/$defs/name``) points to."""
    node: object = root
    for part in str(reference).removeprefix("#/").split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "number"
