"""Variants of the policies with other constants than the built-in ones."""

from __future__ import annotations

from dataclasses import dataclass

from policies_replay import COST

from kvreg_service.core.policies import CostPolicy, EvictionPolicy, LFUPolicy, SLRUPolicy
from kvreg_service.core.sequence import Sequence


@dataclass(frozen=True)
class _WeighedReturns(CostPolicy):
    """`CostPolicy` in which earlier returns raise the value by at most ``returns_weight``."""

    returns_weight: float = 0.5

    def value(self, sequence: Sequence, now_s: float) -> float:
        share = sequence.num_hits / (1 + sequence.num_hits)
        return (
            super().value(sequence, now_s) / (1 + 0.5 * share) * (1 + self.returns_weight * share)
        )


def variants() -> dict[str, EvictionPolicy]:
    """Return the variants, keyed by the constant that differs."""
    return {
        "cost, 5 s": CostPolicy(COST, 5.0),
        "cost, 80 s": CostPolicy(COST, 80.0),
        "cost, returns 0": _WeighedReturns(COST, returns_weight=0.0),
        "cost, returns 1": _WeighedReturns(COST, returns_weight=1.0),
        "cost, returns 4": _WeighedReturns(COST, returns_weight=4.0),
        "slru, 0.5": SLRUPolicy(0.5),
        "lfu, 60 s": LFUPolicy(60.0),
    }
