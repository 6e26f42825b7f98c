"""Dashboards and rules return data when Prometheus scrapes a running engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from dashboards.operator_metrics import OPERATOR_METRICS
from tests.dashboards.engine import running_engine
from tests.dashboards.expressions import (
    Expression,
    dashboard_expressions,
    labels_in,
    metrics_in,
    rule_expressions,
    selectors_in,
    substitute,
)
from tests.dashboards.mix import OPTIONS, play_mix
from tests.dashboards.prometheus import (
    TARGET_LABELS,
    Prometheus,
    running_prometheus,
    without_warm_up,
)
from tests.system_parts import require_part

# No operator runs in this test.
_OPERATOR_METRICS = set(OPERATOR_METRICS)
# Without MTP these counters stay at 0, and their ratio is NaN.
_MTP_METRICS = {"kvreg_mtp_accepted_tokens_total", "kvreg_mtp_drafted_tokens_total"}

_VARIABLES = {**TARGET_LABELS, "profile": "scripted", "__rate_interval": "1m"}


def _all(*kinds: str, but: set[str]) -> list[Expression]:
    rules = [expression for kind in kinds for expression in rule_expressions(kind)]
    return [
        expression
        for expression in (*dashboard_expressions(), *rules)
        if not metrics_in(expression.expr) & but
    ]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that has scraped an engine before the mix and after it."""
    require_part("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    log = folder / "requests.jsonl"
    with (
        running_engine(folder, *OPTIONS, "--request-log", str(log)) as url,
        running_prometheus(url.removeprefix("http://"), folder) as prometheus,
    ):
        # A counter has a rate only if an earlier sample exists.
        assert prometheus.wait_for("kvreg_engine_ready == 1")
        play_mix(url)
        prometheus.restart_timeout()
        # The last request of the mix is cancelled.
        assert prometheus.wait_for('sum(kvreg_requests_total{outcome="cancelled"}) == 1')
        yield prometheus


# Alerts return data only when they fire; test_rules.py covers that.
@pytest.mark.parametrize(
    "expression", _all("record", but=_OPERATOR_METRICS | _MTP_METRICS), ids=str
)
def test_every_expression_returns_data(prometheus: Prometheus, expression: Expression) -> None:
    expr = without_warm_up(substitute(expression.expr, _VARIABLES))
    answer = prometheus.wait_for(expr, _has_number)

    assert _has_number(answer), (expr, answer)
    assert all(expression.labels <= set(series["metric"]) for series in answer), answer


@pytest.mark.parametrize("expression", _all("record", "alert", but=_OPERATOR_METRICS), ids=str)
def test_every_metric_label_and_value_exists(
    prometheus: Prometheus, expression: Expression
) -> None:
    expr = substitute(expression.expr, _VARIABLES)
    # Without a selector this test would check nothing.
    assert selectors_in(expr)
    for selector in selectors_in(expr):
        assert prometheus.wait_for(selector), selector
    for label in labels_in(expr):
        metrics = "|".join(metrics_in(expr))
        assert prometheus.wait_for(f'{{__name__=~"{metrics}",{label}!=""}}'), label


def test_recorded_ratio_matches_the_requests_of_the_mix(prometheus: Prometheus) -> None:
    (hits,) = prometheus.query('sum(kvreg_requests_total{tail="assistant",attach="registry"})')
    (requests,) = prometheus.query("sum(kvreg_requests_total)")
    ratio = float(hits["value"][1]) / float(requests["value"][1])

    recorded = "namespace:kvreg_assistant_registry_hits:ratio_rate1h"
    answer = prometheus.wait_for(recorded, _is_value(ratio))
    assert _is_value(ratio)(answer), (ratio, answer)


def _has_number(answer: list[dict[str, Any]]) -> bool:
    return any(not math.isnan(float(series["value"][1])) for series in answer)


def _is_value(value: float) -> Any:
    return lambda answer: [float(s["value"][1]) for s in answer] == [pytest.approx(value)]
