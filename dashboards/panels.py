"""Panel types of the dashboards, each with one fixed style.

Owns style, unit and links of a panel. Its queries are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLink,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    Panel,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.queries import quantile

DOCS_URL = "https://kvreg.dev/docs"
"""The URL under which docs/ of this repository is published."""

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

AnyPanel = Builder[Panel]
Link = Builder[DashboardLink]

FULL_WIDTH = 24
_GRAPH_HEIGHT = 8
_NUMBER_HEIGHT = 4


@dataclass(frozen=True)
class Query:
    """A query of a panel, with its legend. ``step`` is the minimum interval between points."""

    expr: str
    legend: str = ""
    step: str = ""


@dataclass(frozen=True)
class About:
    """Title, description and unit of a panel. ``alert`` is the alert that the panel explains."""

    title: str
    description: str
    unit: str
    alert: str | None = None


def graph(
    about: About,
    *queries: Query,
    width: int = 12,
    stacked: bool = False,
    bars: bool = False,
    maximum: float | None = None,
    span: str | None = None,
) -> AnyPanel:
    """Build a time series panel whose axis starts at 0.

    Use ``stacked`` for series that add up to a total. ``span`` overrides the time range of the
    dashboard.
    """
    panel = (
        timeseries.Panel()
        .title(about.title)
        .description(about.description)
        .unit(about.unit)
        .datasource(DATASOURCE)
        .links(_links(about))
        .span(width)
        .height(_GRAPH_HEIGHT)
        .min(0)
        .line_width(1)
        .fill_opacity(25 if stacked or bars else 0)
        .show_points(VisibilityMode.NEVER)
        .draw_style(GraphDrawStyle.BARS if bars else GraphDrawStyle.LINE)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if maximum is not None:
        panel = panel.max(maximum)
    if span is not None:
        panel = panel.time_from(span)
    steps = [query.step for query in queries if query.step]
    if steps:
        panel = panel.interval(steps[0])
    for ref_id, query in zip("ABCDEFGH", queries, strict=False):
        panel = panel.with_target(
            prometheus.Dataquery().ref_id(ref_id).expr(query.expr).legend_format(query.legend)
        )
    return panel


def quantiles(histogram: str) -> list[Query]:
    """Return queries for the p50, p95 and p99 of a histogram."""
    return [
        Query(quantile(0.5, histogram), "p50"),
        Query(quantile(0.95, histogram), "p95"),
        Query(quantile(0.99, histogram), "p99"),
    ]


def number(about: About, query: Query, *, width: int = 6) -> AnyPanel:
    """Build a panel that shows one current value."""
    return (
        stat.Panel()
        .title(about.title)
        .description(about.description)
        .unit(about.unit)
        .datasource(DATASOURCE)
        .links(_links(about))
        .span(width)
        .height(_NUMBER_HEIGHT)
        .no_value("no traffic" if about.unit == "percentunit" else "none")
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.NONE)
        .with_target(prometheus.Dataquery().ref_id("A").expr(query.expr).instant())
    )


def listing(
    about: About, query: Query, *, columns: dict[str, str], width: int = FULL_WIDTH
) -> AnyPanel:
    """Build a table of the current series, one per row. ``columns`` maps labels to headings."""
    return (
        table.Panel()
        .title(about.title)
        .description(about.description)
        .unit(about.unit)
        .datasource(DATASOURCE)
        .links(_links(about))
        .span(width)
        .height(_GRAPH_HEIGHT)
        .with_target(
            prometheus.Dataquery()
            .ref_id("A")
            .expr(query.expr)
            .instant()
            .format(PromQueryFormat.TABLE)
        )
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True, "Value": "Value" not in columns},
                    "indexByName": {label: place for place, label in enumerate(columns)},
                    "renameByName": columns,
                },
            )
        )
    )


def link(title: str, page: str) -> Link:
    """Build a link to a page of the documents, which opens in a new tab."""
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(f"{DOCS_URL}/{page}")
        .target_blank(True)
    )


def _links(about: About) -> list[Link]:
    if about.alert is None:
        return []
    return [link(f"Runbook: {about.alert}", f"runbook.md#{about.alert.lower()}")]
