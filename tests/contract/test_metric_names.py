"""Exposed metrics, the pinned names and docs/metrics.md agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.contract.metric_names import METRIC_LABELS

from kvreg_service.telemetry.metrics.exposition import Exposer
from kvreg_service.telemetry.metrics.metrics import Metrics
from kvreg_service.testing.fake_engine import FakeEngine

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
# Labels whose values depend on the engine, so that the document cannot list them.
OPEN_LABELS = {"code", "pool", "profile", "profile_hash", "lanes", "entries", "current_state"}
UNITS = {"seconds": "s", "bytes": "bytes", "tokens": "tokens"}

Labels = dict[str, set[str]]


def _exposed() -> dict[str, tuple[str, Labels]]:
    """Return type, labels and label values of every metric of a first scrape."""
    metrics = Metrics(CollectorRegistry())
    metrics.watch(FakeEngine())
    text = Exposer(metrics.registry).expose("").content.decode()
    exposed: dict[str, tuple[str, Labels]] = {}
    for family in text_string_to_metric_families(text):
        labels: Labels = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    labels.setdefault(label, set()).add(value)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        exposed[name] = (family.type, labels)
    return exposed


def _documented() -> dict[str, tuple[str, Labels, str]]:
    """Return type, labels, label values and unit of each row of the document."""
    rows: dict[str, tuple[str, Labels, str]] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if not re.match(r"\| `(kvreg|process)_", line):
            continue
        name, kind, labels, unit, _meaning = (cell.strip() for cell in line.strip("| ").split(" |"))
        assert name not in rows, f"{name} has two rows"
        values: Labels = {}
        for part in filter(None, labels.split("; ")):
            label, *known = re.findall(r"`([^`]+)`", part)
            values[label] = set(known)
        rows[name.strip("`")] = (kind, values, unit)
    return rows


EXPOSED = _exposed()
DOCUMENTED = _documented()
METRICS = pytest.mark.parametrize("name", METRIC_LABELS)


def test_exposed_metrics_equal_the_pinned_ones() -> None:
    assert set(EXPOSED) == set(METRIC_LABELS)


@METRICS
def test_exposed_labels_equal_the_pinned_ones(name: str) -> None:
    assert set(EXPOSED[name][1]) == set(METRIC_LABELS[name])


def test_documented_metrics_equal_the_exposed_ones() -> None:
    assert set(DOCUMENTED) == set(EXPOSED)


@METRICS
def test_documented_type_equals_the_exposed_one(name: str) -> None:
    assert DOCUMENTED[name][0] == EXPOSED[name][0]


@METRICS
def test_documented_labels_and_values_equal_the_exposed_ones(name: str) -> None:
    exposed = {
        label: set() if label in OPEN_LABELS else values
        for label, values in EXPOSED[name][1].items()
    }
    assert DOCUMENTED[name][1] == exposed


@METRICS
def test_documented_unit_matches_the_name(name: str) -> None:
    in_name = [unit for word, unit in UNITS.items() if word in name.split("_")]
    assert DOCUMENTED[name][2] == (in_name[0] if in_name else "")
