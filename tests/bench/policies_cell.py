"""One cell of the comparison: one scenario and one engine setup under several policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_run import BenchFailed
from policies_bound import Opportunity, find_opportunities, most_gain
from policies_replay import COST, Outcome, Setup, replay
from policies_traffic import SEEDS, Scenario, TrafficRequest, build_stream

from kvreg_service.core.policies import EvictionPolicy


@dataclass(frozen=True)
class Stream:
    """The requests of one seed, and what each could reuse."""

    requests: Sequence[TrafficRequest]
    opportunities: Sequence[Opportunity]


@dataclass(frozen=True)
class Bound:
    """The most tokens, and the most seconds, that could be saved; optimised separately."""

    tokens: int
    seconds: float

    @classmethod
    def of(cls, streams: Iterable[Stream], setup: Setup) -> Bound:
        """Compute both. With anchors, every head counts as kept from its second use."""
        tokens = milliseconds = 0
        for stream in streams:
            tokens += _most(stream.opportunities, setup, lambda count: count)
            milliseconds += _most(stream.opportunities, setup, _prefill_milliseconds)
        return cls(tokens, milliseconds / 1_000)


@dataclass(frozen=True)
class Cell:
    """The bound, and the outcome of each policy on the same requests."""

    bound: Bound
    outcomes: dict[str, Outcome]

    def share(self, policy: str) -> float:
        """Return the tokens that a policy hit, as a share of the bound."""
        return self.outcomes[policy].hit_tokens / self.bound.tokens

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {
            "bound": {"tokens": self.bound.tokens, "seconds": self.bound.seconds},
            "policies": {name: outcome.as_json() for name, outcome in self.outcomes.items()},
        }


def build_streams(scenario: Scenario, seeds: Sequence[str] = SEEDS) -> list[Stream]:
    """Return the streams of a scenario, one per seed."""
    requests = [build_stream(scenario, seed) for seed in seeds]
    return [Stream(each, find_opportunities(each)) for each in requests]


def compare(
    streams: Sequence[Stream],
    setup: Setup,
    policies: Mapping[str, EvictionPolicy],
    advance: Callable[[], None] = lambda: None,
) -> Cell:
    """Serve all streams under each policy; the outcomes are keyed by policy name.

    Raises:
        BenchFailed: a policy exceeds the bound, so one of the two is wrong.
    """
    bound = Bound.of(streams, setup)
    outcomes: dict[str, Outcome] = {}
    for name, policy in policies.items():
        total = Outcome()
        for stream in streams:
            total += replay(stream.requests, stream.opportunities, setup, policy)
        if total.hit_tokens > bound.tokens or total.saved_s > bound.seconds:
            raise BenchFailed(
                f"{name} on {setup} hit {total.hit_tokens} tokens ({total.saved_s:.1f} s), "
                f"which exceeds the bound of {bound.tokens} ({bound.seconds:.1f} s)"
            )
        outcomes[name] = total
        advance()
    return Cell(bound, outcomes)


def _most(opportunities: Sequence[Opportunity], setup: Setup, worth: Callable[[int], int]) -> int:
    heads = [worth(one.head_tokens) if setup.anchors else 0 for one in opportunities]
    gains = [
        max(0, worth(one.tokens) - head) for one, head in zip(opportunities, heads, strict=True)
    ]
    return sum(heads) + most_gain(opportunities, gains, setup.num_places)


def _prefill_milliseconds(num_tokens: int) -> int:
    return math.ceil(COST.prefill_seconds(num_tokens) * 1_000)
