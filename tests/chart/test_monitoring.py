"""The rendered monitors, rules and dashboards."""

from __future__ import annotations

import json
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.chart.helm import CHART, render, select, select_all

DASHBOARDS = CHART.parents[1] / "dashboards"
MONITORED: dict[str, Any] = {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}}


def test_nothing_of_it_is_there_unless_it_is_asked_for() -> None:
    kinds = {part["kind"] for part in render()}
    assert not kinds & {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ConfigMap"}


def test_rules_are_those_of_the_dashboards() -> None:
    groups = [
        group
        for path in sorted((DASHBOARDS / "rules").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    assert select(render(MONITORED), "PrometheusRule")["spec"] == {"groups": groups}


def test_what_prometheus_fills_in_is_left_to_it() -> None:
    assert "{{ $labels.pod }}" in str(select(render(MONITORED), "PrometheusRule"))


def test_dashboards_are_the_generated_ones() -> None:
    rendered: dict[str, Any] = {}
    for part in select_all(render(MONITORED), "ConfigMap"):
        assert part["metadata"]["labels"]["grafana_dashboard"] == "1"
        rendered |= {name: json.loads(text) for name, text in part["data"].items()}
    assert rendered == {
        f"kvreg-{path.name}": json.loads(path.read_text())
        for path in (DASHBOARDS / "generated").glob("*.json")
    }


def test_another_label_can_take_the_place_of_grafana_s() -> None:
    dashboards = {"labels": {"grafana_dashboard": None, "boards": "yes"}}
    objects = render({"monitoring": {"enabled": True, "dashboards": dashboards}})
    for part in select_all(objects, "ConfigMap"):
        assert part["metadata"]["labels"]["boards"] == "yes"
        assert "grafana_dashboard" not in part["metadata"]["labels"]


def test_prometheus_finds_monitors_and_rules_by_the_labels() -> None:
    objects = render(MONITORED)
    parts = [*select_all(objects, "PodMonitor"), select(objects, "PrometheusRule")]
    assert [part["metadata"]["labels"]["release"] for part in parts] == ["prometheus"] * 3


def test_monitors_keep_the_labels_by_which_the_rules_go() -> None:
    for kind, endpoints in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        for part in select_all(render({"monitoring": {"enabled": True, "kind": kind}}), kind):
            (endpoint,) = part["spec"][endpoints]
            # No relabelling removes the labels that the Prometheus Operator adds.
            assert endpoint == {"port": endpoint["port"], "path": "/metrics", "interval": "30s"}
