"""The eviction policies: what keeping a sequence is worth.

Each gives a sequence a value of at least 0, and may sort sequences into levels that come before any
value. `eviction` decides which sequences may be evicted at all, and for which tenant.
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
    """Orders kept sequences. Pure: the same arguments give the same result."""

    @property
    def name(self) -> str:
        """Its name in the settings."""
        ...

    @property
    def evicts_for_detach(self) -> bool:
        """Whether an entry may be evicted to make room for a displaced sequence."""
        ...

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return the value of keeping the sequence, at least 0. The lowest is evicted first."""
        ...

    def levels(self, kept: Collection[Sequence]) -> Levels:
        """Return the levels of these sequences; a missing one has level 0.

        All of a lower level are evicted before any of a higher one, whatever their values.
        """
        ...


class _WithoutLevels:
    def levels(self, kept: Collection[Sequence]) -> Levels:  # noqa: ARG002 - there are none
        """Return no levels."""
        return {}


@dataclass(frozen=True)
class CostPolicy(_WithoutLevels):
    """Seconds of prefill saved, times the likelihood of a resume, per byte held.

    The likelihood falls as one over the time at rest once that exceeds ``rest_scale_s``. Shorter
    rests hardly matter, so a few side requests do not evict the session between whose turns they
    run; of longer rests the *ratio* matters, whether users take seconds or minutes to answer.
    Former hits raise the likelihood by less than half, so that a session with many hits does not
    keep out a new one. ADR 0006 has the comparison. Tokens that an anchor keeps as well count for
    neither seconds nor bytes.
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
    """The least recently used is evicted first. A long prompt that never returns pollutes it."""

    name: str = "lru"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return one over the seconds at rest."""
        return _recency(sequence, now_s)


@dataclass(frozen=True)
class LFUPolicy(_WithoutLevels):
    """The least frequently resumed is evicted first; the count ages with the time at rest.

    Without ageing, a long conversation that is over would never be evicted. The count halves with
    every ``half_life_s`` at rest: two hits twenty seconds ago count as one now.
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
    """The oldest is evicted first, however recently it was used."""

    name: str = "fifo"
    evicts_for_detach: bool = True

    def value(self, sequence: Sequence, now_s: float) -> float:
        """Return one over the seconds since the conversation was first computed."""
        return 1 / (1 + max(0.0, now_s - sequence.created_s))


@dataclass(frozen=True)
class SLRUPolicy:
    """Segmented LRU: sequences that were resumed at least once are protected from the others.

    At most ``protected_share`` of all kept sequences but one are protected, the most recently used
    ones, so that a new sequence always has room. Within a segment the least recently used is
    evicted first.

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
    """The lowest ``priority`` is evicted first; among equals, the order is that of `CostPolicy`."""

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
    """A displaced sequence is kept only in an empty entry; no entry is evicted for it.

    Page pressure still evicts kept sequences, the least recently used first.
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
