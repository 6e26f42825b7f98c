"""Repeated measurements of one quantity, and their text and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """At least one measurement, in base units.

    Raises:
        ValueError: there is none.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("nothing was measured")

    @classmethod
    def of(cls, values: Iterable[float]) -> Samples:
        """Collect measurements."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """The median; of an even number the mean of the middle two."""
        return statistics.median(self.values)

    def percentile(self, percent: float) -> float:
        """Return the smallest value that at least ``percent`` % of the values do not exceed."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def text(self, *, scale: float = 1.0, digits: int = 0) -> str:
        """Return median, minimum and maximum, each multiplied by ``scale``."""
        shown = [self.median, min(self.values), max(self.values)]
        median, low, high = (f"{value * scale:,.{digits}f}" for value in shown)
        return f"{median} ({low} .. {high})"

    def as_json(self) -> dict[str, float | int]:
        """Return the summary for the JSON file."""
        return {
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "p99": self.percentile(99),
            "count": len(self.values),
        }


def ratio(numerator: Samples, denominator: Samples) -> float:
    """Return the ratio of medians; interleaved measurements cancel the machine's drift."""
    return numerator.median / denominator.median
