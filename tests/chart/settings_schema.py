"""The part of values.schema.json for `engine.settings`.

``python -m tests.chart.settings_schema`` writes it anew from the engine's settings; a test
compares. Who else decides a setting is no matter of the schema: the templates refuse those by name.
"""

from __future__ import annotations

import json
from typing import Any

from tests.chart.helm import CHART

from kvreg_service.settings import Settings

SCHEMA_PATH = CHART / "values.schema.json"
_KEPT = (
    "type", "enum", "minimum", "maximum", "exclusiveMinimum", "multipleOf", "minLength",
    "maxLength", "description",
)  # fmt: skip

_DECIMAL = r"^[0-9]+(\.[0-9]+)?$"


def build_settings_schema() -> dict[str, Any]:
    """Build the schema: every setting with its type and bounds, and nothing else."""
    schema = Settings.model_json_schema(ref_template="{model}")
    defs = schema.get("$defs", {})
    return {
        "$comment": "Written by `python -m tests.chart.settings_schema`; do not edit.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            # An enum is defined once for all its fields; the description is that of the field.
            name: _convert({**defs.get(part.get("$ref"), {}), **part})
            for name, part in schema["properties"].items()
        },
    }


def read_schema() -> dict[str, Any]:
    """Return the whole schema that is checked in."""
    schema = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    assert isinstance(schema, dict)
    return schema


def _convert(part: dict[str, Any]) -> dict[str, Any]:
    # A setting is null if it is not set; a value is absent instead.
    (branch,) = (b for b in part.get("anyOf", [part]) if b.get("type") != "null")
    kept = {key: {**part, **branch}[key] for key in _KEPT if key in {**part, **branch}}
    if kept.get("type") == "number":
        # `helm --set` makes strings of decimal numbers. The engine checks their bounds.
        kept |= {"type": ["number", "string"], "pattern": _DECIMAL}
    return kept


def main() -> None:
    """Update the schema."""
    schema = read_schema()
    schema["properties"]["engine"]["properties"]["settings"] = build_settings_schema()
    SCHEMA_PATH.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
