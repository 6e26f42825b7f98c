"""Generates the tables of docs/request-log.md from the schema; run as a program, it writes them."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[4] / "docs" / "request-log.md"
_MARKS = ("<!-- fields: begin -->", "<!-- fields: end -->")


def read_schema() -> dict[str, Any]:
    path = resources.files("kvreg_service.telemetry.request_log").joinpath("schema.json")
    return json.loads(path.read_text())


def tables(schema: dict[str, Any]) -> str:
    kinds = schema["oneOf"]
    names = [set(kind["properties"]) for kind in kinds]
    common = set.intersection(*names)
    shared = {name: field for name, field in kinds[0]["properties"].items() if name in common}
    shared["kind"] = {"enum": list(dict.fromkeys(k["properties"]["kind"]["const"] for k in kinds))}
    parts = ["### Every line", "", *_table(shared), ""]
    for kind in kinds:
        own = {name: field for name, field in kind["properties"].items() if name not in common}
        parts += [f"### {kind['title']}", "", kind["description"], "", *_table(own), ""]
    return "\n".join(parts)


def _table(fields: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{name}` | {_values(field)} | {field.get('description', '')} |"
        for name, field in fields.items()
    ]
    return ["| field | values | meaning |", "|---|---|---|", *rows]


def _values(field: dict[str, Any]) -> str:
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join("null" if one is None else f"`{one}`" for one in field["enum"])
    if "pattern" in field:
        shown = "time" if field.get("format") == "date-time" else "16 hexadecimal digits"
        return shown + (", null" if isinstance(field["type"], list) else "")
    if field["type"] == "array":
        items = field["items"]
        inner = "list of pairs" if items.get("type") == "array" else f"list of {items['type']}"
        return inner
    return ", ".join(field["type"]) if isinstance(field["type"], list) else field["type"]


def written(document: str) -> str:
    """The tables in the document."""
    return document.partition(_MARKS[0])[2].partition(_MARKS[1])[0].strip()


def with_tables(document: str, text: str) -> str:
    begin, end = map(re.escape, _MARKS)
    body = f"{_MARKS[0]}\n\n{text.strip()}\n\n{_MARKS[1]}"
    return re.sub(f"{begin}.*{end}", lambda _: body, document, flags=re.DOTALL)


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(), tables(read_schema())))
