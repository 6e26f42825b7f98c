"""The frame that all dashboards share: variables, links, annotations, and rows of panels.

The panels of each dashboard are in a module of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import DATASOURCE, AnyPanel, Link, link
from dashboards.queries import now

_TAG = "kvreg"
_NAMESPACES = "label_values(kvreg_profile_info, namespace)"
_PROFILES = 'label_values(kvreg_profile_info{namespace=~"$namespace"}, profile)'
_PODS = 'label_values(kvreg_profile_info{namespace=~"$namespace",profile=~"$profile"}, pod)'
"""Engines of the selected profiles. Each variable limits the choices of those after it."""


@dataclass(frozen=True)
class Row:
    """Panels of one subject, under a title."""

    title: str
    panels: Sequence[AnyPanel]


@dataclass(frozen=True)
class Board:
    """One dashboard. ``name`` is that of its file, and ``span`` the default time range."""

    name: str
    title: str
    description: str
    span: str
    rows: Sequence[Row]


def write_json(board: Board) -> str:
    """Return a dashboard as JSON that Grafana can import."""
    builder = (
        dashboard.Dashboard(board.title)
        .uid(f"{_TAG}-{board.name}")
        .description(board.description)
        .tags([_TAG])
        .timezone("browser")
        .time(f"now-{board.span}", "now")
        .refresh("1m")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .variables(_variables())
        .annotation(_starts())
        .links(_links())
    )
    for row in board.rows:
        builder = builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            builder = builder.with_panel(panel)
    built = builder.build()
    for number, placed in enumerate(built.panels or (), start=1):
        placed.id_val = number
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _variables() -> list[Builder[VariableModel]]:
    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        _choice("namespace", "Namespace", _NAMESPACES),
        _choice("profile", "Profile", _PROFILES),
        _choice("pod", "Engine", _PODS),
    ]


def _choice(name: str, label: str, query: str) -> Builder[VariableModel]:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        # This also matches engines without a profile, which lack the label.
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _starts() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Engine started")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color("blue")
        .expr(f"time() - ({now('kvreg_engine_start_time_seconds')}) < 300")
    )


def _links() -> list[Link]:
    others = (
        dashboard.DashboardLink("Other dashboards")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([_TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    return [
        others,
        link("Dashboards guide", "dashboards.md"),
        link("Runbook", "runbook.md"),
        link("Metrics reference", "metrics.md"),
        link("Glossary", "glossary.md"),
    ]
