"""Writes the metrics down as a scraper asks for them: Prometheus's text format, or OpenMetrics.

Owns the format, and which numbers of the process itself are shown beside those of kvreg.
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
    """One answer to a scraper."""

    content: bytes
    content_type: str


class Exposer:
    """Writes down what a registry holds, and memory, processor time and files of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._shown = _Shown(registry, ProcessCollector(registry=None))

    def expose(self, accept: str) -> Exposition:
        """Return the metrics of this moment, in the format that an ``Accept`` header prefers."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:
            # The version is no number. Prometheus's text is what any scraper reads.
            encode, content_type = choose_encoder("")
        return Exposition(encode(self._shown), content_type)


class _Shown(Collector):
    """Several collectors as one, without the times at which counters were created.

    Each would be one more series; all counters of kvreg start with the engine, whose time is shown.
    """

    def __init__(self, *collectors: Collector | CollectorRegistry) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            for metric in collector.collect():
                created = f"{metric.name}_created"
                metric.samples = [one for one in metric.samples if one.name != created]
                yield metric
