"""PromQL over the engines that the variables of a dashboard select.

Owns how a selection is written: by namespace and pod, which scraping adds, and by profile, which
only ``kvreg_profile_info`` knows and everything else is joined with. A share is always a sum over a
sum.
"""

from __future__ import annotations

RATE_WINDOW = "$__rate_interval"
"""Grafana's own: the step of the panel, and never less than four scrapes."""

_PLACE = 'namespace=~"$namespace",pod=~"$pod"'
ENGINES = f'kvreg_profile_info{{{_PLACE},profile=~"$profile"}}'


def now(metric: str, matchers: str = "") -> str:
    """The values of a gauge, or of a record, of the selected engines."""
    return f"{_select(metric, matchers)} and on (namespace, pod) {ENGINES}"


def rate(metric: str, matchers: str = "", *, window: str = RATE_WINDOW) -> str:
    """What the counters of the selected engines grow by in a second."""
    return f"rate({_select(metric, matchers)}[{window}]) and on (namespace, pod) {ENGINES}"


def increase(metric: str, matchers: str = "", *, window: str = RATE_WINDOW) -> str:
    """What the counters of the selected engines have grown by within ``window``."""
    return f"increase({_select(metric, matchers)}[{window}]) and on (namespace, pod) {ENGINES}"


def total(vector: str, *, by: str = "") -> str:
    """The sum over engines, for each value of the labels in ``by``."""
    return f"sum by ({by}) ({vector})" if by else f"sum({vector})"


def share(part: str, whole: str) -> str:
    """One sum over another. Absent where the whole is 0, so that a graph has a gap and no NaN."""
    return f"{part} / ({whole} > 0)"


def quantile(which: float, histogram: str, *, by: str = "", window: str = RATE_WINDOW) -> str:
    """An estimate from a histogram, over all selected engines together."""
    buckets = rate(f"{histogram}_bucket", window=window)
    return f"histogram_quantile({which:g}, {total(buckets, by=f'le, {by}' if by else 'le')})"


def _select(metric: str, matchers: str) -> str:
    return f"{metric}{{{_PLACE}{',' if matchers else ''}{matchers}}}"
