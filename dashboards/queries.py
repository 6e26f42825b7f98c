"""PromQL over the engines that the variables of a dashboard select.

Owns the selectors: namespace and pod are labels that the scrape adds. The profile is a label of
``kvreg_profile_info`` only, which all other series are joined with. A ratio always divides sums.
"""

from __future__ import annotations

RATE_WINDOW = "$__rate_interval"
"""Grafana's variable: the step of the panel, and at least four scrape intervals."""

_PLACE = 'namespace=~"$namespace",pod=~"$pod"'
ENGINES = f'kvreg_profile_info{{{_PLACE},profile=~"$profile"}}'


def now(metric: str, matchers: str = "") -> str:
    """Select a gauge, or a recorded series, of the selected engines."""
    return f"{_select(metric, matchers)} and on (namespace, pod) {ENGINES}"


def rate(metric: str, matchers: str = "", *, window: str = RATE_WINDOW) -> str:
    """Return the per-second rate of a counter of the selected engines."""
    return f"rate({_select(metric, matchers)}[{window}]) and on (namespace, pod) {ENGINES}"


def increase(metric: str, matchers: str = "", *, window: str = RATE_WINDOW) -> str:
    """Return the increase within ``window`` of a counter of the selected engines."""
    return f"increase({_select(metric, matchers)}[{window}]) and on (namespace, pod) {ENGINES}"


def total(vector: str, *, by: str = "") -> str:
    """Return the sum over engines, for each value of the labels in ``by``."""
    return f"sum by ({by}) ({vector})" if by else f"sum({vector})"


def share(part: str, whole: str) -> str:
    """Divide two sums. Absent, and not NaN, where the divisor is 0."""
    return f"{part} / ({whole} > 0)"


def quantile(which: float, histogram: str, *, by: str = "", window: str = RATE_WINDOW) -> str:
    """Estimate a quantile of a histogram, over all selected engines together."""
    buckets = rate(f"{histogram}_bucket", window=window)
    return f"histogram_quantile({which:g}, {total(buckets, by=f'le, {by}' if by else 'le')})"


def _select(metric: str, matchers: str) -> str:
    return f"{metric}{{{_PLACE}{',' if matchers else ''}{matchers}}}"
