"""The generated dashboards are up to date, complete and readable."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dashboards.boards import GENERATED, build_boards, write_all
from dashboards.operator_metrics import OPERATOR_METRICS
from tests.dashboards.expressions import (
    dashboard_expressions,
    labels_in,
    metrics_in,
    rule_expressions,
)

_DOCS = Path(__file__).parents[2] / "docs"
_WIDTH = 24


def _dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in GENERATED.glob("*.json")]


def _panels() -> list[Any]:
    return [
        pytest.param(panel, id=f"{dashboard['title']}, {panel['title']}")
        for dashboard in _dashboards()
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    ]


def test_generated_files_are_up_to_date(tmp_path: Path) -> None:
    write_all(tmp_path)

    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    checked_in = {path.name: path.read_text(encoding="utf-8") for path in GENERATED.iterdir()}
    assert checked_in == written, "run `make dashboards`"


@pytest.mark.parametrize("dashboard", _dashboards(), ids=lambda dashboard: dashboard["title"])
def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= _WIDTH, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("dashboard", _dashboards(), ids=lambda dashboard: dashboard["title"])
def test_panel_ids_are_unique(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]

    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("panel", _panels())
def test_panel_has_a_title_a_description_a_unit_and_a_query(panel: dict[str, Any]) -> None:
    assert len(panel["title"].split()) >= 2
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]


@pytest.mark.parametrize("panel", _panels())
def test_series_of_a_time_series_panel_have_distinct_legends(panel: dict[str, Any]) -> None:
    if panel["type"] == "timeseries":
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert all(legends)
        assert len(set(legends)) == len(legends)


@pytest.mark.parametrize("dashboard", _dashboards(), ids=lambda dashboard: dashboard["title"])
def test_links_point_to_existing_pages_and_sections(dashboard: dict[str, Any]) -> None:
    links = [
        *dashboard["links"],
        *(link for panel in dashboard["panels"] for link in panel.get("links") or ()),
    ]
    urls = [link["url"] for link in links if link["type"] == "link"]
    assert urls
    for url in urls:
        page, _, anchor = url.rpartition("/")[2].partition("#")
        text = (_DOCS / page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        assert not anchor or anchor in {heading.lower() for heading in headings}, url


@pytest.mark.parametrize("dashboard", _dashboards(), ids=lambda dashboard: dashboard["title"])
def test_every_dashboard_has_variables_for_namespace_profile_and_pod(
    dashboard: dict[str, Any],
) -> None:
    names = [variable["name"] for variable in dashboard["templating"]["list"]]

    assert names == ["datasource", "namespace", "profile", "pod"]


def test_every_engine_query_filters_by_all_variables() -> None:
    for expression in dashboard_expressions():
        if "choice of" in expression.place or metrics_in(expression.expr) & set(OPERATOR_METRICS):
            continue
        for variable in ("namespace", "profile", "pod"):
            assert f'{variable}=~"${variable}"' in expression.expr, expression


def test_operator_metrics_are_exactly_the_metrics_and_labels_used() -> None:
    expressions = [
        *dashboard_expressions(),
        *rule_expressions("alert"),
        *rule_expressions("record"),
    ]
    used: dict[str, set[str]] = {}
    for expression in expressions:
        for metric in metrics_in(expression.expr):
            if metric.startswith("kvreg_operator_"):
                used.setdefault(metric, set()).update(labels_in(expression.expr) - {"namespace"})

    assert used == {metric: set(labels) for metric, labels in OPERATOR_METRICS.items()}


def test_files_are_named_after_their_dashboards() -> None:
    assert {path.stem for path in GENERATED.iterdir()} == {board.name for board in build_boards()}
