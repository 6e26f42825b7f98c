"""The schema of the values is closed and complete, and its errors name the path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.chart import settings_schema, values_table
from tests.chart.helm import CHART, HelmError, Values, render, run_helm, variables
from tests.chart.values_table import nest


def groups(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    parts = values_table.resolve(schema)
    if "properties" in parts:
        yield path, parts
        for name, part in parts["properties"].items():
            if isinstance(part, dict):
                yield from groups(f"{path}.{name}".lstrip("."), part)


def test_settings_are_the_engine_s() -> None:
    schema = settings_schema.read_schema()
    stored = schema["properties"]["engine"]["properties"]["settings"]
    assert stored == settings_schema.build_settings_schema(), (
        "run: python -m tests.chart.settings_schema"
    )


def test_schema_has_exactly_the_values() -> None:
    known = {value.path for value in values_table.read_values()}
    for path, group in groups("", settings_schema.read_schema()):
        # These have no defaults, or are types of Kubernetes.
        if path.endswith((".settings", "resources", "podLabels", "podAnnotations")):
            continue
        for name in group["properties"].keys() - {"global"}:
            inner = f"{path}.{name}".lstrip(".")
            assert any(leaf == inner or leaf.startswith(f"{inner}.") for leaf in known), inner


def test_every_value_is_explained() -> None:
    assert [value.path for value in values_table.read_values() if not value.comment] == []


def test_table_of_the_readme_is_the_values() -> None:
    assert values_table.read_table() == values_table.build_table(), (
        "run: python -m tests.chart.values_table"
    )


@pytest.mark.parametrize(
    "path",
    [path for path, part in groups("", settings_schema.read_schema())
     if part.get("additionalProperties") is False],
)  # fmt: skip
def test_typo_is_an_error_that_names_its_place(path: str) -> None:
    with pytest.raises(HelmError) as refused:
        render(nest(f"{path}.tpyo".lstrip("."), 1))
    assert f"at '/{path.replace('.', '/')}'".replace("/'", "'") in str(refused.value)
    assert "'tpyo' not allowed" in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.replicas", -1),
        ("engine.replicas", "two"),
        ("podSecurityContext.runAsUser", 0),
        ("engine.image.repository", "kvreg/engine:1"),
        ("engine.image.digest", "sha256:12"),
        ("engine.image.pullPolicy", "Sometimes"),
        ("engine.settings.eviction", "lruu"),
        ("engine.settings.prefill_chunk_tokens", 100),
        ("engine.settings.memory_gib", 0),
        ("engine.drainTimeoutSeconds", 1.5),
        ("engine.preStopSeconds", -1),
        ("engine.sharedMemory", "1GB"),
        ("engine.probes.startup.failureThreshold", 0),
        ("engine.nodeSelector.pool", 1),
        ("model.source", "s3"),
        ("model.path", "/absolute"),
        ("model.hostPath", "relative"),
        ("gpu.count", 9),
        ("gpu.resourceName", "gpu"),
        ("apiKeys.key", "keys.yaml"),
        ("requestLog.volume", "nfs"),
        ("requestLog.size", "1 GiB"),
        ("requestLog.retention.whenDeleted", "Maybe"),
        ("service.type", "ExternalName"),
        ("operator.watchNamespaces", ["a,b"]),
        ("operator.resyncSeconds", 0),
        ("operator.logLevel", "trace"),
        ("networkPolicy.from", "all"),
        ("monitoring.kind", "Probe"),
        ("monitoring.labels.release", 1),
    ],
)
def test_bad_value_is_an_error_that_names_its_place(path: str, value: object) -> None:
    with pytest.raises(HelmError) as refused:
        render(nest(path, value))
    assert f"at '/{path.replace('.', '/')}" in str(refused.value)


def test_number_with_a_point_may_come_from_the_command_line() -> None:
    text = run_helm("template", "kvreg", str(CHART), "--set", "engine.settings.memory_gib=0.25")
    objects = [part for part in yaml.safe_load_all(text) if part]
    assert variables(objects)["KVREG_MEMORY_GIB"] == "0.25"
    with pytest.raises(HelmError, match=r"/engine/settings/memory_gib.*much"):
        run_helm("template", "kvreg", str(CHART), "--set", "engine.settings.memory_gib=much")


@pytest.mark.parametrize(
    "values",
    [
        {"engine": {"podLabels": {"app.kubernetes.io/component": "other"}}},
        {"operator": {"podLabels": {"app.kubernetes.io/instance": "other"}}},
        {"engine": {"podAnnotations": {"kvreg.dev/settings-hash": "0"}}},
    ],
)
def test_labels_of_the_selectors_and_the_operator_s_annotation_are_not_for_values(
    values: Values,
) -> None:
    with pytest.raises(HelmError, match="false schema"):
        render(values)


def test_a_chart_above_may_set_global_values() -> None:
    assert render({"global": {"anything": 1}}) == render()
