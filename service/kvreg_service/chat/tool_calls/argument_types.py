"""What the schemas of a request's tools say about the type of each argument.

Some formats of tool calls write every value as bare text. Whether ``3`` is a number or a string
is known from the tool's JSON schema alone; this module reads as much of a schema as that takes.
It validates nothing else: ranges, patterns and required keys are the tool's own business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

# How Python spells them; models that were trained on Python do so now and then.
_PYTHON_CONSTANTS: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
# Schemas may refer to themselves.
_MAX_DEPTH = 8


class ArgumentTypes:
    """The argument schemas of a list of tools, as OpenAI writes them. Stateless."""

    def __init__(self, tools: Sequence[Mapping[str, object]]) -> None:
        self._schemas: dict[str, Mapping[str, object]] = {}
        for tool in tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                schema = function.get("parameters")
                self._schemas[function["name"]] = schema if isinstance(schema, Mapping) else {}

    def parse(self, tool: str, key: str, text: str) -> object:
        """The value that ``text`` stands for: a string unless the schema wants something else.

        Text that is no JSON of a type that the schema allows is a string.
        """
        schema = self._schemas.get(tool, {})
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or key not in properties:
            return text
        types = _types_of(properties[key], schema, _MAX_DEPTH)
        if "string" in types:
            # Of all that is no string, only null cannot well be meant as one.
            return None if "null" in types and text.strip() == "null" else text
        return _parse(text, types)


def load_json(text: str) -> object:
    """Parse JSON strictly: what JSON does not have, such as NaN, is refused as well.

    Raises:
        ValueError: It is no JSON, or nested too deeply, or holds a lone surrogate, which no
            response could be encoded with.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # A surrogate can be spelled as an escape only; looking costs nothing where there is none.
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse(constant: str) -> object:
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
    """The JSON types that a schema allows; none when it does not say."""
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
    """The part of the schema that a local reference (``#/$defs/name``) points to."""
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
