"""Every value of the chart: its path, its default and its comment.

``python -m tests.chart.values_table`` writes the table of the chart's README from values.yaml; a
test compares. A value is a leaf of the schema, or a map that accepts any key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.chart.helm import CHART
from tests.chart.settings_schema import read_schema

README = CHART / "README.md"
_BEGIN, _END = "<!-- values: begin -->\n", "<!-- values: end -->"
# Types of Kubernetes, of which the schema contains only the outermost keys.
_WHOLE = ("engine.resources", "operator.resources", "engine.settings")


@dataclass(frozen=True)
class Value:
    """One value. ``comment`` is the comment above it in values.yaml."""

    path: str
    default: Any
    comment: str


def read_values() -> list[Value]:
    """Return all values, in the order of values.yaml."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    comments = dict(_read_comments(text))
    return [
        Value(path, default, comments.get(path, ""))
        for path, default in _walk("", yaml.safe_load(text), read_schema())
    ]


def nest(path: str, value: object) -> dict[str, Any]:
    """Return values in which only this path is set."""
    head, _, rest = path.partition(".")
    return {head: nest(rest, value) if rest else value}


def build_table() -> str:
    """Build the table of the README."""
    rows = ["| value | default | |", "|---|---|---|"]
    for value in read_values():
        rows.append(f"| `{value.path}` | `{json.dumps(value.default)}` | {value.comment} |")
    return "\n".join(rows) + "\n"


def read_table() -> str:
    """Return the table that is checked in."""
    text = README.read_text(encoding="utf-8")
    return text.partition(_BEGIN)[2].partition(_END)[0]


def _walk(path: str, default: Any, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    parts = resolve(schema)
    if path in _WHOLE or parts.get("additionalProperties") is not False:
        yield path, default
        return
    for name, value in default.items():
        yield from _walk(f"{path}.{name}".lstrip("."), value, parts["properties"][name])


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve the reference of a part of the schema, if it is one."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return read_schema()["definitions"][name] if name else schema


def _read_comments(text: str) -> Iterator[tuple[str, str]]:
    path: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            lines.append(stripped.lstrip("# "))
            continue
        name, colon, _ = stripped.partition(":")
        if colon and not stripped.startswith("-"):
            path = [*path[: (len(line) - len(line.lstrip())) // 2], name]
            yield ".".join(path), " ".join(lines)
        lines = []


def main() -> None:
    """Update the table in the README."""
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition(_BEGIN)
    README.write_text(head + _BEGIN + build_table() + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    main()
