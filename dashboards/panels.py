"""The kinds of panels that the dashboards are made of, each with its looks settled once.

Owns looks, units and links of a panel. What it asks is an argument.
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
"""Where docs/ of this repository is published."""

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

AnyPanel = Builder[Panel]
Link = Builder[DashboardLink]

FULL_WIDTH = 24
_GRAPH_HEIGHT = 8
_NUMBER_HEIGHT = 4


@dataclass(frozen=True)
class Query:
    """What a panel asks, and what its lines are called. ``step``: the least distance of points."""

    expr: str
    legend: str = ""
    step: str = ""


@dataclass(frozen=True)
class About:
    """What a panel says, to a person who has never seen it. ``alert`` is the one it belongs to."""

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
    """Lines over time, from 0 on; ``stacked`` areas where they add up to something.

    ``span`` is the time that is shown, where it is not that of the whole dashboard.
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
    """Three lines of one histogram, named for people who do not speak of percentiles."""
    return [
        Query(quantile(0.5, histogram), "half are faster"),
        Query(quantile(0.95, histogram), "95 % are faster"),
        Query(quantile(0.99, histogram), "99 % are faster"),
    ]


def number(about: About, query: Query, *, width: int = 6) -> AnyPanel:
    """One number of this moment, large."""
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
    """The labels of all series of this moment, one a row. ``columns``: labels and their titles."""
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
    """A link to a page of the documents, in a tab of its own."""
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(f"{DOCS_URL}/{page}")
        .target_blank(True)
    )


def _links(about: About) -> list[Link]:
    if about.alert is None:
        return []
    return [link(f"What to do: {about.alert}", f"runbook.md#{about.alert.lower()}")]
