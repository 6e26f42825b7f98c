"""The generated dashboards: as the code says, complete, and readable."""

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


def test_files_are_what_the_code_writes(tmp_path: Path) -> None:
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
def test_panels_have_ids_of_their_own(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]

    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("panel", _panels())
def test_a_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert len(panel["title"].split()) >= 2
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]


@pytest.mark.parametrize("panel", _panels())
def test_several_lines_have_names(panel: dict[str, Any]) -> None:
    if panel["type"] == "timeseries":
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert all(legends)
        assert len(set(legends)) == len(legends)


@pytest.mark.parametrize("dashboard", _dashboards(), ids=lambda dashboard: dashboard["title"])
def test_links_lead_to_pages_and_sections_that_exist(dashboard: dict[str, Any]) -> None:
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
def test_every_dashboard_can_be_narrowed_by_namespace_profile_and_pod(
    dashboard: dict[str, Any],
) -> None:
    names = [variable["name"] for variable in dashboard["templating"]["list"]]

    assert names == ["datasource", "namespace", "profile", "pod"]


def test_every_question_about_engines_is_narrowed_by_all_variables() -> None:
    for expression in dashboard_expressions():
        if "choice of" in expression.place or metrics_in(expression.expr) & set(OPERATOR_METRICS):
            continue
        for variable in ("namespace", "profile", "pod"):
            assert f'{variable}=~"${variable}"' in expression.expr, expression


def test_the_operators_side_of_the_contract_is_what_is_used() -> None:
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
