"""How much a kept sequence is worth, and which one goes first when room is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.ids import SequenceId
from kvreg_service.core.sequence import Sequence


@dataclass(frozen=True)
class CostModel:
    """Seconds of prefill and bytes of memory, as far as they decide who is kept.

    Prefilling S tokens costs ``S * seconds_per_token`` for everything linear and
    ``S * (S + 1) / 2 * seconds_per_pair`` for attention. The default rates are fitted to prefill
    rates of 1,121 tok/s at 4 Ki and 1,029 tok/s at 32 Ki tokens of a 27B-class model on 2 x V100;
    only their ratio matters for the order of values.
    """

    seconds_per_token: float = 8.81e-4
    seconds_per_pair: float = 5.55e-9
    slot_bytes: int = 1
    page_bytes: int = 1

    def prefill_seconds(self, num_tokens: int) -> float:
        """Return the seconds that computing ``num_tokens`` from nothing takes."""
        pairs = num_tokens * (num_tokens + 1) / 2
        return num_tokens * self.seconds_per_token + pairs * self.seconds_per_pair

    def held_bytes(self, sequence: Sequence) -> int:
        """Return the bytes of the states and pages that the sequence holds."""
        return sequence.num_states * self.slot_bytes + len(sequence.pages) * self.page_bytes


class EvictionPolicy(Protocol):
    """Orders kept sequences. Pure: the same arguments give the same answer."""

    @property
    def name(self) -> str:
        """The name under which settings choose it."""
        ...

    @property
    def evicts_for_detach(self) -> bool:
        """Whether an entry may be emptied to make room for a displaced sequence."""
        ...

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return what keeping the sequence is worth. The lowest value goes first."""
        ...


@dataclass(frozen=True)
class CostPolicy:
    """Seconds of prefill saved, times how likely a return is, per byte held.

    The likelihood falls as one over the time at rest once that is longer than ``rest_scale_s``:
    shorter rests hardly count, so that a handful of side requests does not push out the session
    between whose turns they come, and of longer ones the *ratio* counts, whether users take seconds
    or minutes to answer. Former returns raise it by less than half: a session that came back often
    must not keep out one that begins now. ADR 0006 has the comparison.
    """

    cost: CostModel
    rest_scale_s: float = 20.0
    name: str = "cost"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return expected seconds saved per byte."""
        rest_s = max(0.0, now_s - sequence.last_used_s)
        recency = 1 / (1 + rest_s / self.rest_scale_s)
        frequency = 1 + 0.5 * sequence.num_hits / (1 + sequence.num_hits)
        saved_s = self.cost.prefill_seconds(sequence.reusable_tokens)
        return saved_s * recency * frequency / max(1, self.cost.held_bytes(sequence))


@dataclass(frozen=True)
class NonePolicy:
    """A displaced sequence is kept only in an empty entry, and nothing is evicted to make room.

    Page pressure still takes from kept sequences, the longest unused first.
    """

    name: str = "none"
    evicts_for_detach: bool = False

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return the negative idle time."""
        return sequence.last_used_s - now_s


POLICY_NAMES = ("cost", "none")


def build_policy(name: str, cost: CostModel) -> EvictionPolicy:
    """Return the eviction policy of that name.

    Raises:
        ConfigurationError: there is none; the message lists the known names.
    """
    if name == "cost":
        return CostPolicy(cost)
    if name == "none":
        return NonePolicy()
    raise ConfigurationError(
        f"eviction is {name!r}, and must be one of {', '.join(POLICY_NAMES)}", value=name
    )


FORK_WEIGHT = 0.25
"""Part of its value at which a fork counts while nobody knows which branch will go on."""


@dataclass(frozen=True, order=True)
class Rank:
    """Sort key of eviction: superseded forks first, then by value, then the older sequence."""

    is_needed: bool
    value: float
    sequence_id: SequenceId


def rank(
    sequence: Sequence, policy: EvictionPolicy, alive: Mapping[SequenceId, int], now_s: float
) -> Rank:
    """Return the sequence's place in the order of eviction; the smallest rank goes first.

    A fork whose branch went on once may be the session, and the branch a side request that began
    with its history; it counts at `FORK_WEIGHT`. A branch that went on twice is the session, and
    its fork is superseded.

    Args:
        sequence: the kept sequence.
        policy: gives the value.
        alive: all running and kept sequences, with how often each was resumed. A fork is one only
            while the sequence that went on from it is among them.
        now_s: the present.
    """
    value = policy.value(sequence, now_s)
    branch_hits = alive.get(sequence.superseded_by) if sequence.superseded_by else None
    if branch_hits is None:
        return Rank(True, value, sequence.sequence_id)
    is_superseded = branch_hits >= sequence.num_hits + 2
    return Rank(not is_superseded, value * FORK_WEIGHT, sequence.sequence_id)
