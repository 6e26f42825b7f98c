"""The exposition of metrics: Prometheus's text format, or OpenMetrics.

Owns the format, and which metrics of the process are exposed besides those of kvreg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


@dataclass(frozen=True)
class Exposition:
    """The body of one scrape."""

    content: bytes
    content_type: str


class Exposer:
    """Exposes a registry, and the memory, CPU time and file descriptors of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._shown = _Shown(registry, ProcessCollector(registry=None))

    def expose(self, accept: str) -> Exposition:
        """Return the current metrics in the format that an ``Accept`` header prefers."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:
            # The version in the header is not a number. Every scraper reads the text format.
            encode, content_type = choose_encoder("")
        return Exposition(encode(self._shown), content_type)


class _Shown(Collector):
    """Several collectors as one, without the ``_created`` series of counters.

    All counters of kvreg start with the engine, whose start time is a gauge.
    """

    def __init__(self, *collectors: Collector | CollectorRegistry) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            for metric in collector.collect():
                created = f"{metric.name}_created"
                metric.samples = [one for one in metric.samples if one.name != created]
                yield metric
