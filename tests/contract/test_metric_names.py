"""The metrics that are shown, the names that others rely on and docs/metrics.md are the same."""

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
# What one engine has and another has not; a document can name no values of them.
OPEN_LABELS = {"code", "pool", "profile", "profile_hash", "lanes", "entries", "current_state"}
UNITS = {"seconds": "s", "bytes": "bytes", "tokens": "tokens"}

Labels = dict[str, set[str]]


def _shown() -> dict[str, tuple[str, Labels]]:
    """The type of every metric of a first scrape, and its labels with their values."""
    metrics = Metrics(CollectorRegistry())
    metrics.watch(FakeEngine())
    text = Exposer(metrics.registry).expose("").content.decode()
    shown: dict[str, tuple[str, Labels]] = {}
    for family in text_string_to_metric_families(text):
        labels: Labels = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    labels.setdefault(label, set()).add(value)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown[name] = (family.type, labels)
    return shown


def _documented() -> dict[str, tuple[str, Labels, str]]:
    """The type, the labels with their values, and the unit in each row of the document."""
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


SHOWN = _shown()
DOCUMENTED = _documented()
METRICS = pytest.mark.parametrize("name", METRIC_LABELS)


def test_shown_metrics_are_the_pinned_ones() -> None:
    assert set(SHOWN) == set(METRIC_LABELS)


@METRICS
def test_labels_are_the_pinned_ones(name: str) -> None:
    assert set(SHOWN[name][1]) == set(METRIC_LABELS[name])


def test_documented_metrics_are_the_shown_ones() -> None:
    assert set(DOCUMENTED) == set(SHOWN)


@METRICS
def test_documented_type_is_the_shown_one(name: str) -> None:
    assert DOCUMENTED[name][0] == SHOWN[name][0]


@METRICS
def test_documented_labels_and_values_are_the_shown_ones(name: str) -> None:
    shown = {
        label: set() if label in OPEN_LABELS else values for label, values in SHOWN[name][1].items()
    }
    assert DOCUMENTED[name][1] == shown


@METRICS
def test_documented_unit_is_the_one_in_the_name(name: str) -> None:
    in_name = [unit for word, unit in UNITS.items() if word in name.split("_")]
    assert DOCUMENTED[name][2] == (in_name[0] if in_name else "")
