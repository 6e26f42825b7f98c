"""Arguments have the types of the tool's schema; anything else is text."""

from __future__ import annotations

from typing import Any

import pytest

from kvreg_service.chat.tool_calls.argument_types import ArgumentTypes, load_json


def tool(schema: object, **more: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"x": schema}, **more}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, " 3 ", 3),
        ({"type": "integer"}, "3.0", 3.0),
        ({"type": "integer"}, "3.5", "3.5"),
        ({"type": "integer"}, "three", "three"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "number"}, "3", 3),
        ({"type": "number"}, "-1.5e3", -1500.0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "null"}, "None", None),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "1, 2", "1, 2"),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "object"}, '{"a": [null]}', {"a": [None]}),
        ({"type": "object"}, '{"a": ', '{"a": '),
        ({"type": "object"}, "[" * 5000, "[" * 5000),
        ({"type": "object"}, '{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "null"]}, "3", 3),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "None", "None"),
        ({"type": ["string", "integer"]}, "3", "3"),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, "[3]", [3]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "3", "3"),
        ({"allOf": [{"type": "integer"}]}, "3", 3),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": True}, "true", True),
        ({"$ref": "#/$defs/count"}, "3", 3),
        ({"$ref": "#/$defs/nothing"}, "3", "3"),
        ({"$ref": "#/properties/x"}, "3", "3"),
        ({"type": 5}, "3", "3"),
        ({}, "3", "3"),
        (True, "3", "3"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_value_has_the_type_of_its_schema(schema: object, text: str, value: Any) -> None:
    types = ArgumentTypes([tool(schema, **{"$defs": {"count": {"type": "integer"}}})])
    parsed = types.parse("f", "x", text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [{"type": "function", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": "f", "parameters": None}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": [1]}}}],
        [{"type": "function"}],
        [tool({"type": "integer"}) | {"function": "f"}],
    ],
)
def test_without_a_schema_everything_is_text(tools: list[dict[str, object]]) -> None:
    assert ArgumentTypes(tools).parse("f", "x", "3") == "3"


def test_an_argument_that_the_schema_does_not_know_is_text() -> None:
    assert ArgumentTypes([tool({"type": "integer"})]).parse("f", "y", "3") == "3"


def test_json_of_a_pair_of_surrogates_is_a_character() -> None:
    assert load_json('"\\ud83d\\ude00"') == "😀"
