"""The order in which kept sequences are evicted, and which of them may not be evicted at all.

Owns the order at one moment. A policy gives the values; the rules for forks, pins and quotas are
the same for every policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kvreg_service.core.ids import SequenceId
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.quota import Quota
from kvreg_service.core.sequence import Sequence

FORK_WEIGHT = 0.25
"""The weight of a fork's value while it is unknown which branch will be continued."""


@dataclass(frozen=True, order=True)
class Rank:
    """Sort key of eviction: superseded forks first, pinned sequences last.

    Between them the policy's level counts, then its value, then the age.
    """

    is_pinned: bool
    is_needed: bool
    level: int
    value: float
    sequence_id: SequenceId


class EvictionOrder:
    """The order of all sequences that are kept at one moment."""

    def __init__(
        self,
        kept: Collection[Sequence],
        running: Iterable[Sequence],
        policy: EvictionPolicy,
        quotas: Mapping[str, Quota],
        now_s: float,
    ) -> None:
        """Rank the sequences.

        Args:
            kept: all sequences at rest.
            running: all others. A sequence counts as a fork only while the one that continued it is
                among either of them.
            policy: gives the values.
            quotas: the tenants whose sequences other tenants do not evict.
            now_s: the current time.
        """
        self._hits = {one.sequence_id: one.num_hits for one in (*kept, *running)}
        self._levels = policy.levels(kept)
        self._policy = policy
        self._quotas = quotas
        self._now_s = now_s

    def rank(self, sequence: Sequence) -> Rank:
        """Return the sequence's rank; the smallest is evicted first.

        A fork whose branch was continued once may be the session, and the branch a side request
        that began with its history; its value is weighted by `FORK_WEIGHT`. A branch that was
        continued twice is the session, and its fork is superseded.
        """
        level, value = self.worth(sequence)
        if sequence.superseded_by in self._hits:
            value *= FORK_WEIGHT
        is_pinned, is_needed = sequence.is_pinned(self._now_s), not self.is_superseded(sequence)
        return Rank(is_pinned, is_needed, level, value, sequence.sequence_id)

    def worth(self, sequence: Sequence) -> tuple[int, float]:
        """Return the policy's level and value."""
        level = self._levels.get(sequence.sequence_id, 0)
        return level, self._policy.value(sequence, self._now_s)

    def is_superseded(self, sequence: Sequence) -> bool:
        """Whether it is a fork whose branch turned out to be the session."""
        branch = sequence.superseded_by
        return branch in self._hits and self._hits[branch] >= sequence.num_hits + 2

    def is_protected(self, sequence: Sequence) -> bool:
        """Whether other tenants' requests may not take its pages."""
        if sequence.is_pinned(self._now_s):
            return True
        return sequence.tenant in self._quotas and not sequence.is_lent

    def may_take(self, sequence: Sequence, tenant: str) -> bool:
        """Whether the sequence may be evicted for a request of ``tenant``."""
        if sequence.is_pinned(self._now_s):
            return False
        return sequence.tenant == tenant or not self.is_protected(sequence)

    def first(self, candidates: Iterable[Sequence], tenant: str) -> Sequence | None:
        """Return the sequence to evict first for ``tenant``; None if none may be evicted."""
        takeable = [one for one in candidates if self.may_take(one, tenant)]
        return min(takeable, key=self.rank, default=None)
