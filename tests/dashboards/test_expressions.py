"""The extraction of names from expressions, on which the other tests rely."""

from __future__ import annotations

import pytest
from tests.dashboards.expressions import labels_in, metrics_in, selectors_in, substitute


def test_metrics_and_recorded_series_are_found() -> None:
    expr = "sum(rate(kvreg_a_total[5m])) / namespace_pod:kvreg_b:rate1h + process_c_bytes"

    assert metrics_in(expr) == {"kvreg_a_total", "namespace_pod:kvreg_b:rate1h", "process_c_bytes"}


def test_metric_without_matchers_is_a_selector() -> None:
    assert selectors_in("max(kvreg_a)") == {"kvreg_a{}"}


def test_each_alternative_is_a_selector() -> None:
    assert selectors_in('kvreg_a{code=~"x|y",pod=~"p-0",source!="z"}') == {
        'kvreg_a{code="x",pod=~"p-0",source!="z"}',
        'kvreg_a{code="y",pod=~"p-0",source!="z"}',
    }


def test_matcher_that_cannot_be_parsed_is_an_error() -> None:
    with pytest.raises(AssertionError):
        selectors_in('kvreg_a{code = "x"}')


def test_labels_of_groupings_and_joins_are_found() -> None:
    expr = "sum by (le, a) (kvreg_x) * on (b, c) group_left (d) kvreg_y"

    assert labels_in(expr) == {"a", "b", "c", "d"}


def test_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(AssertionError):
        substitute('kvreg_a{pod=~"$pod"}', {"namespace": "n"})
