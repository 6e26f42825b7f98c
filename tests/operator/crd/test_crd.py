"""The CRD contains the models, as an API server accepts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from tests.operator.objects import make_profile

from kvreg_operator.crd.definition import CRD_PATH, build_crd, crd_text

VERSION = build_crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within a schema, with its path."""
    yield path, node
    for name, part in node.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")


def test_checked_in_file_is_the_generated_one() -> None:
    assert CRD_PATH.read_text(encoding="utf-8") == crd_text()


@pytest.mark.parametrize("keyword", ["$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title"])
def test_schema_is_structural(keyword: str) -> None:
    assert [path for path, node in nodes(SCHEMA) if keyword in node] == []


def test_every_part_of_the_schema_has_a_type() -> None:
    assert [path for path, node in nodes(SCHEMA) if "type" not in node] == []


def test_every_field_of_the_spec_is_described() -> None:
    spec = SCHEMA["properties"]["spec"]
    assert [path for path, node in nodes(spec) if not node.get("description")] == []


def test_status_is_a_subresource_and_there_is_no_scale() -> None:
    assert VERSION["subresources"] == {"status": {}}


def test_drop_without_entries_is_refused_by_a_rule() -> None:
    rules = [r["rule"] for r in SCHEMA["properties"]["spec"]["x-kubernetes-validations"]]
    assert rules == ["self.currentState != 'Drop' || self.registryEntries > 0"]


def test_target_is_immutable_by_a_rule() -> None:
    target = SCHEMA["properties"]["spec"]["properties"]["targetRef"]
    assert [r["rule"] for r in target["x-kubernetes-validations"]] == ["self == oldSelf"]


def test_printed_columns_read_what_is_there() -> None:
    known = {path for path, _ in nodes(SCHEMA)} | {".metadata.creationTimestamp"}
    paths = {column["jsonPath"] for column in VERSION["additionalPrinterColumns"]}
    plain = {path for path in paths if "?" not in path}
    assert plain <= known


@pytest.mark.parametrize(
    "spec",
    [
        {"lanes": 0},
        {"lanes": 65},
        {"registryEntries": -1},
        {"registryEntries": 4097},
        {"anchors": 65},
        {"currentState": "keep"},
        {"canary": {"pods": 0}},
        {"targetRef": {"name": "Not_A_Name"}},
        {"targetRef": {"name": "x" * 53}},
        {"rollout": {"idleTimeoutSeconds": -1}},
    ],
    ids=str,
)
def test_models_keep_the_bounds_of_the_schema(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_profile(**spec)


def test_fields_of_a_newer_crd_are_ignored() -> None:
    assert make_profile(novelty={"x": 1}).spec == make_profile().spec
