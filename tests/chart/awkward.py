"""Texts that YAML parses as another type, and the values of the chart that accept them.

Owns which text is tried at which value: one that the schema of the value allows, beside a plain one
of the same form. The schema decides which texts a value accepts, so that no value is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
from tests.chart.settings_schema import read_schema
from tests.chart.values_table import nest, resolve

PLAIN = "plaintext"
# Two numbers, a boolean, and a map with a comment, as YAML 1.1 parses them without quotes.
AWKWARD = ("0x1", "123", "on", "a: b #c")
FORMS = ("{}", "/{}", "/srv/{}", "{}.json", "example.org/{}")
# Where only a number with a unit is allowed, there is no plain text.
PLAIN_QUANTITY = "7654321Ki"


@dataclass(frozen=True)
class Trial:
    """Two texts for one value, of which only the second one is awkward."""

    path: str
    plain: dict[str, Any]
    plain_text: str
    awkward: dict[str, Any]
    awkward_text: str

    def __str__(self) -> str:
        return f"{self.path}={self.awkward_text}"


def trials() -> Iterator[Trial]:
    """Yield every awkward text that each value accepts."""
    for path, shape in _texts("", read_schema()):
        for text in AWKWARD:
            for plain_text, awkward_text in _pairs(text):
                plain, awkward = shape.fill(plain_text), shape.fill(awkward_text)
                if shape.allows(plain) and shape.allows(awkward):
                    yield Trial(
                        path, nest(path, plain), plain_text, nest(path, awkward), awkward_text
                    )
                    break


def text_paths() -> set[str]:
    """Return the paths of all values that accept any text."""
    return {path for path, _ in _texts("", read_schema())}


def replace(part: Any, plain: str, awkward: str) -> Any:
    """Return the objects with one text replaced by another, in keys and values."""
    match part:
        case dict():
            return {
                replace(key, plain, awkward): replace(value, plain, awkward)
                for key, value in part.items()
            }
        case list():
            return [replace(value, plain, awkward) for value in part]
        case str():
            return part.replace(plain, awkward)
    return part


@dataclass(frozen=True)
class _Shape:
    """A value that holds texts: one, a list of them, a map to them, or a list of objects."""

    schema: dict[str, Any]

    def fill(self, text: str) -> Any:
        if self.schema["type"] == "string":
            return text
        if self.schema["type"] == "object":
            return {"example.org/key": text}
        item = resolve(self.schema["items"])
        if item["type"] == "string":
            return [text]
        names = (n for n, part in item["properties"].items() if part["type"] == "string")
        return [dict.fromkeys(names, text)]

    def allows(self, value: Any) -> bool:
        whole = {**self.schema, "definitions": read_schema()["definitions"]}
        return jsonschema_rs.is_valid(whole, value)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for form in FORMS:
        yield form.format(PLAIN), form.format(text)
    yield PLAIN_QUANTITY, text


def _texts(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, _Shape]]:
    schema = resolve(schema)
    item = resolve(schema.get("items", {}))
    types = (schema.get("type"), item.get("type"))
    is_map = schema.get("additionalProperties") == {"type": "string"}
    if is_map or "properties" in item or ("string" in types and "enum" not in schema):
        yield path, _Shape(schema)
        return
    for name, part in schema.get("properties", {}).items():
        yield from _texts(f"{path}.{name}".lstrip("."), part)
