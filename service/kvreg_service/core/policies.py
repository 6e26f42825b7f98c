"""The eviction policies: what keeping a sequence is worth, by several opinions.

Each gives a value of at least 0 to one sequence, and may sort sequences into levels that count
before any value. Who may be given up at all, and for whom, is decided by `eviction`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.ids import SequenceId
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.value import CostModel

Levels = Mapping[SequenceId, int]


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
        """Return what keeping the sequence is worth, at least 0. The lowest value goes first."""
        ...

    def levels(self, kept: Collection[Sequence]) -> Levels:
        """Return the levels of these sequences; one that is not named has level 0.

        All of a lower level go before any of a higher one, whatever their values.
        """
        ...


class _WithoutLevels:
    def levels(self, kept: Collection[Sequence]) -> Levels:  # noqa: ARG002 - there are none
        """Return no levels."""
        return {}


@dataclass(frozen=True)
class CostPolicy(_WithoutLevels):
    """Seconds of prefill saved, times how likely a return is, per byte held.

    The likelihood falls as one over the time at rest once that is longer than ``rest_scale_s``:
    shorter rests hardly count, so that a handful of side requests does not push out the session
    between whose turns they come, and of longer ones the *ratio* counts, whether users take seconds
    or minutes to answer. Former returns raise it by less than half: a session that came back often
    must not keep out one that begins now. ADR 0006 has the comparison. What an anchor keeps as well
    counts for neither seconds nor bytes.
    """

    cost: CostModel
    rest_scale_s: float = 20.0
    name: str = "cost"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return expected seconds saved per byte."""
        recency = 1 / (1 + _rest_s(sequence, now_s) / self.rest_scale_s)
        frequency = 1 + 0.5 * sequence.num_hits / (1 + sequence.num_hits)
        saved_s = self.cost.own_seconds(sequence)
        return saved_s * recency * frequency / max(1, self.cost.own_bytes(sequence))


@dataclass(frozen=True)
class LRUPolicy(_WithoutLevels):
    """The least recently used goes first. One long prompt that nobody repeats pollutes it."""

    name: str = "lru"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return one over the seconds at rest."""
        return _recency(sequence, now_s)


@dataclass(frozen=True)
class LFUPolicy(_WithoutLevels):
    """The least often resumed goes first; what somebody was resumed for ages with its rest.

    Without ageing a conversation that was long and is over would stay for ever. Its count halves
    with every ``half_life_s`` at rest: two returns twenty seconds ago count as one now.
    """

    half_life_s: float = 20.0
    name: str = "lfu"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return the aged number of uses, the first one included."""
        # A power of two underflows to zero only after a thousand half-lives.
        age = min(_rest_s(sequence, now_s) / self.half_life_s, 1000.0)
        return (1 + sequence.num_hits) * math.exp2(-age)


@dataclass(frozen=True)
class FIFOPolicy(_WithoutLevels):
    """The oldest goes first, however recently it was used."""

    name: str = "fifo"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return one over the seconds since the conversation was first computed."""
        return 1 / (1 + max(0.0, now_s - sequence.created_s))


@dataclass(frozen=True)
class SLRUPolicy:
    """Segmented LRU: what was resumed at least once is protected from what was not.

    At most ``protected_share`` of the kept sequences but one are protected, the most recently used
    ones, so that there is always room for a newcomer to prove itself. Within a segment the least
    recently used goes first.

    Source: Karedla, Love and Wherry, "Caching strategies to improve disk system performance",
    IEEE Computer 27(3), 1994.
    """

    protected_share: float = 0.8
    name: str = "slru"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return one over the seconds at rest."""
        return _recency(sequence, now_s)

    def levels(self, kept: Collection[Sequence]) -> Levels:
        """Return level 1 for protected sequences."""
        resumed = [sequence for sequence in kept if sequence.num_hits > 0]
        resumed.sort(key=lambda one: (one.last_used_s, one.sequence_id), reverse=True)
        # With few entries a share of all of them would be all of them.
        num_protected = int(self.protected_share * max(0, len(kept) - 1))
        return {sequence.sequence_id: 1 for sequence in resumed[:num_protected]}


@dataclass(frozen=True)
class PriorityPolicy:
    """What the client gave a lower ``priority`` goes first; among equals, by cost."""

    cost: CostModel
    name: str = "priority"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return the value of `CostPolicy`."""
        return CostPolicy(self.cost).value(sequence, now_s)

    def levels(self, kept: Collection[Sequence]) -> Levels:
        """Return the priorities."""
        return {sequence.sequence_id: sequence.priority for sequence in kept}


@dataclass(frozen=True)
class NonePolicy(_WithoutLevels):
    """A displaced sequence is kept only in an empty entry, and nothing is evicted to make room.

    Page pressure still takes from kept sequences, the longest unused first.
    """

    name: str = "none"
    evicts_for_detach: bool = False

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return one over the seconds at rest."""
        return _recency(sequence, now_s)


POLICY_NAMES = ("cost", "lru", "lfu", "fifo", "slru", "priority", "none")


def build_policy(name: str, cost: CostModel) -> EvictionPolicy:
    """Return the eviction policy of that name.

    Raises:
        ConfigurationError: there is none; the message lists the known names.
    """
    match name:
        case "cost":
            return CostPolicy(cost)
        case "lru":
            return LRUPolicy()
        case "lfu":
            return LFUPolicy()
        case "fifo":
            return FIFOPolicy()
        case "slru":
            return SLRUPolicy()
        case "priority":
            return PriorityPolicy(cost)
        case "none":
            return NonePolicy()
    raise ConfigurationError(
        f"eviction is {name!r}, and must be one of {', '.join(POLICY_NAMES)}", value=name
    )


def _rest_s(sequence: Sequence, now_s: float) -> float:
    return max(0.0, now_s - sequence.last_used_s)


def _recency(sequence: Sequence, now_s: float) -> float:
    return 1 / (1 + _rest_s(sequence, now_s))
