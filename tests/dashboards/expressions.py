"""Every expression of dashboards and rules, and the metrics, labels and values in it.

Owns the collection of expressions and the extraction of names. This is not a PromQL parser: it
supports the forms used here, and raises for a matcher that it cannot parse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

_DASHBOARDS = Path(__file__).parents[2] / "dashboards"
_METRIC = re.compile(r"\b(?:kvreg|process|namespace(?:_\w+)?:kvreg)_[\w:]+")
_SELECTOR = re.compile(rf"({_METRIC.pattern})(?:\{{([^}}]*)\}})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
_LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")
_VARIABLE = re.compile(r"label_values\((.*), (\w+)\)")


@dataclass(frozen=True)
class Expression:
    """One expression, its location, and the labels that its result must have."""

    place: str
    expr: str
    labels: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.place


def dashboard_expressions() -> list[Expression]:
    """Return the expressions of all panels, annotations and variables of the dashboards."""
    return [
        expression
        for path in sorted((_DASHBOARDS / "generated").glob("*.json"))
        for expression in _of_dashboard(json.loads(path.read_text(encoding="utf-8")))
    ]


def rule_expressions(kind: str) -> list[Expression]:
    """Return the expressions of all rules of a kind: ``record`` or ``alert``."""
    files = [yaml.safe_load(path.read_text()) for path in sorted(_DASHBOARDS.glob("rules/*.yaml"))]
    return [
        Expression(rule[kind], rule["expr"])
        for file in files
        for group in file["groups"]
        for rule in group["rules"]
        if kind in rule
    ]


def substitute(expr: str, values: dict[str, str]) -> str:
    """Replace the variables of a dashboard by values."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr, f"a variable without a value: {expr}"
    return expr


def metrics_in(expr: str) -> set[str]:
    """Return the names of all metrics in an expression."""
    return set(_METRIC.findall(expr))


def selectors_in(expr: str) -> set[str]:
    """Return the selectors that must match a series: each metric with each value of its matchers.

    A pattern of alternatives gives one selector per alternative, so that a misspelt one is found.
    """
    return {
        f"{metric}{{{','.join(matchers)}}}"
        for metric, given in _SELECTOR.findall(expr)
        for matchers in product(*(_alternatives(*one) for one in _matchers(given)))
    }


def labels_in(expr: str) -> set[str]:
    """Return the labels of groupings and of vector matching."""
    return {
        label.strip() for group in _GROUPING.findall(expr) for label in group.split(",") if label
    } - {"le"}


def _matchers(given: str) -> list[tuple[str, str, str]]:
    found = _MATCHER.findall(given)
    assert ",".join(f'{label}{sign}"{value}"' for label, sign, value in found) == given, given
    return found


def _alternatives(label: str, sign: str, value: str) -> list[str]:
    if sign == "=~" and re.fullmatch(r"\w+(\|\w+)+", value):
        return [f'{label}="{one}"' for one in value.split("|")]
    return [f'{label}{sign}"{value}"']


def _of_dashboard(dashboard: dict[str, Any]) -> Iterator[Expression]:
    title = dashboard["title"]
    for panel in dashboard["panels"]:
        columns = frozenset(_columns(panel))
        for target in panel.get("targets", ()):
            legend = frozenset(_LEGEND_LABEL.findall(target.get("legendFormat", "")))
            place = f"{title}, {panel['title']} ({target['refId']})"
            yield Expression(place, target["expr"], legend | columns)
    for annotation in dashboard["annotations"]["list"]:
        yield Expression(f"{title}, {annotation['name']}", annotation["expr"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = _VARIABLE.fullmatch(variable["query"])
            assert found is not None, variable
            place = f"{title}, choice of {variable['name']}"
            yield Expression(place, f"count by ({found[2]}) ({found[1]})", frozenset({found[2]}))


def _columns(panel: dict[str, Any]) -> Iterator[str]:
    for transformation in panel.get("transformations", ()):
        yield from transformation["options"]["renameByName"]
