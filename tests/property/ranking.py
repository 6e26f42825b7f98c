"""The order in which kept sequences are evicted, computed from the mirror.

Only the value of a sequence is taken from the policy: its formula is tuned and has no oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from event_mirror import Mirror
from seen import Seen

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import SequenceId
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.sequence import Checkpoint, Sequence

_NO_TOKENS = TokenLedger(Identity(b"epoch", "tenant"))


@dataclass(frozen=True)
class Profile:
    lanes: int
    entries: int
    anchors: int
    keep_current: bool
    exchange: bool
    policy: EvictionPolicy
    context_tokens: int

    def can_keep(self, seen: Seen) -> bool:
        return seen.checkpoint is not None or (self.keep_current and seen.has_current)


class Ranking:
    """The eviction order at one time."""

    def __init__(self, mirror: Mirror, profile: Profile, now_s: float) -> None:
        self._alive = mirror.sequences
        self._quotas = mirror.quotas
        self._policy = profile.policy
        self._now_s = now_s
        self._levels = self._policy.levels([_as_sequence(seen) for seen in mirror.kept()])

    def is_superseded(self, seen: Seen) -> bool:
        branch = self._alive.get(seen.superseded_by)
        return branch is not None and branch.num_hits >= seen.num_hits + 2

    def level_and_value(self, seen: Seen) -> tuple[int, float]:
        """Return the policy's level and value of a sequence. Other tests check the formula."""
        value = self._policy.value(_as_sequence(seen), self._now_s)
        return self._levels.get(SequenceId(seen.sequence_id), 0), value

    def eviction_key(self, seen: Seen) -> tuple[bool, bool, int, float, int]:
        """Return the sort key: superseded forks first, pinned last, else level, value, age."""
        weight = 0.25 if seen.superseded_by in self._alive else 1
        level, value = self.level_and_value(seen)
        return (
            seen.is_pinned(self._now_s),
            not self.is_superseded(seen),
            level,
            weight * value,
            seen.sequence_id,
        )

    def may_evict(self, seen: Seen, tenant: str) -> bool:
        """Whether ``tenant`` may evict it: not pinned, nor protected by another's quota."""
        if seen.is_pinned(self._now_s):
            return False
        return seen.tenant == tenant or seen.tenant not in self._quotas or seen.is_lent

    def first_victim(self, candidates: Iterable[Seen], tenant: str) -> Seen | None:
        """Return the sequence to evict first for a request of ``tenant``."""
        evictable = [seen for seen in candidates if self.may_evict(seen, tenant)]
        return min(evictable, key=self.eviction_key, default=None)


def _as_sequence(seen: Seen) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(seen.sequence_id),
        ledger=_NO_TOKENS,
        created_s=seen.created_s,
        last_used_s=seen.last_used_s,
        frontier=seen.frontier,
        has_current=seen.has_current,
        checkpoint=seen.checkpoint and Checkpoint(seen.checkpoint, CheckpointKind.TURN),
        pages=list(seen.pages),
        num_hits=seen.num_hits,
        priority=seen.priority,
        anchored_tokens=seen.anchored_tokens,
    )
