"""The CustomResourceDefinition, written from the models of ``profile``.

``python -m kvreg_operator.crd`` writes it anew; a test compares. Owns how a pydantic schema becomes
a structural one: no references, no unions with null, and no titles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kvreg_operator.crd.profile import (
    GROUP,
    KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    VERSION,
    ProfileSpec,
    ProfileStatus,
    ResourcePart,
)

CRD_PATH = Path(__file__).parents[3] / "charts" / "kvreg" / "files" / "kvregistryprofiles.yaml"

Schema = dict[str, Any]


def build_crd() -> Schema:
    """Build the definition. It has a status and no scale: replicas are the StatefulSet's."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _whole_schema()},
                }
            ],
        },
    }


def _whole_schema() -> Schema:
    return {
        "type": "object",
        "description": "What one set of engines is asked to serve, and what it serves.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(ProfileSpec),
            "status": structural_schema(ProfileStatus),
        },
    }


def _columns() -> list[Schema]:
    columns = [
        ("Target", "string", ".spec.targetRef.name", 0),
        ("Lanes", "integer", ".spec.lanes", 0),
        ("Entries", "integer", ".spec.registryEntries", 0),
        ("Current", "string", ".spec.currentState", 0),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
        ("Waiting", "string", ".status.waitingFor.reason", 0),
        ("Age", "date", ".metadata.creationTimestamp", 0),
        ("Desired", "string", ".status.desiredHash", 1),
        ("Serving", "string", ".status.servingHash", 1),
    ]
    return [
        {"name": name, "type": kind, "jsonPath": path, "priority": priority}
        for name, kind, path, priority in columns
    ]


def structural_schema(model: type[ResourcePart]) -> Schema:
    """Return the schema of a model as the API server takes it."""
    schema = model.model_json_schema(by_alias=True)
    inlined = _convert(schema, schema.get("$defs", {}))
    assert isinstance(inlined, dict)
    return inlined


def _convert(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_convert(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    node = dict(node)
    if "$ref" in node:
        name = node.pop("$ref").rpartition("/")[2]
        # What stands beside the reference, as a description or a default, is nearer.
        return _convert({**definitions[name], **node}, definitions)
    if "anyOf" in node:
        (branch,) = (b for b in node.pop("anyOf") if b != {"type": "null"})
        return _convert({**branch, **node}, definitions)
    converted: Schema = {}
    for key, value in node.items():
        if key == "properties":
            converted[key] = {name: _convert(part, definitions) for name, part in value.items()}
        elif key == "const":
            converted["enum"] = [value]
        elif key in ("title", "$defs") or (key == "default" and value is None):
            continue
        elif key == "default":
            converted[key] = value
        else:
            converted[key] = _convert(value, definitions)
    return converted


def crd_text() -> str:
    """Return the definition as the file that is checked in."""
    head = "# Written by `python -m kvreg_operator.crd`; do not edit.\n"
    body: str = yaml.safe_dump(build_crd(), sort_keys=False, width=100)
    return head + body
