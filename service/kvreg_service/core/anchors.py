"""Owns the A anchor places: checkpoints of heads that many conversations share.

An anchor is immutable. A conversation that begins with its head gets a copy of its state and shares
its pages, which are never written, because an anchor ends at a page boundary. This module chooses
the heads that get a place; their values come from the policies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from kvreg_service.core.errors import InvariantBroken
from kvreg_service.core.eviction import EvictionOrder
from kvreg_service.core.ids import PAGE_TOKENS, AnchorId
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.quota import Quota
from kvreg_service.core.request import Head
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.slots import SlotLayout

# Sixteen bytes each. Far more heads than an engine sees between two uses of one.
_MAX_SEEN = 4096


@dataclass(frozen=True)
class Anchor:
    """A kept head. Its sequence has a checkpoint at its end and no current state."""

    anchor_id: AnchorId
    sequence: Sequence
    is_marked: bool

    @property
    def is_proven(self) -> bool:
        """Whether a second conversation began with it, or a client marked it."""
        return self.is_marked or self.sequence.num_hits > 0

    def check_invariants(self) -> None:
        """Raise InvariantBroken unless it is a checkpoint at the end of whole pages."""
        sequence = self.sequence
        end = sequence.checkpoint.position if sequence.checkpoint else None
        if sequence.has_current or end != len(sequence.ledger) or end % PAGE_TOKENS:
            raise InvariantBroken(
                f"anchor {self.anchor_id} is not a checkpoint at the end of its "
                f"{len(sequence.ledger)} tokens",
                anchor=self.anchor_id,
            )


class AnchorTable:
    """The A places, and the heads seen so far.

    The first conversation with a head leaves a *candidate*, which the second one can reuse.
    Candidates compete for the places that proven anchors leave: one-off prompts cannot evict those.
    """

    def __init__(self, layout: SlotLayout) -> None:
        self._places: list[Anchor | None] = [None] * layout.anchors
        self._times_seen: OrderedDict[bytes, int] = OrderedDict()

    def __iter__(self) -> Iterator[Anchor]:
        """Yield the anchors in ascending order of their places."""
        return (anchor for anchor in self._places if anchor is not None)

    @property
    def num_places(self) -> int:
        """How many anchors there can be."""
        return len(self._places)

    def find(self, anchor_id: AnchorId) -> Anchor | None:
        """Return the anchor in a place, or None when it is empty."""
        return self._places[anchor_id]

    def find_by_sequence(self, sequence: Sequence) -> Anchor | None:
        """Return the anchor that holds this very sequence, or None."""
        return next((anchor for anchor in self if anchor.sequence is sequence), None)

    def find_head(self, ledger: TokenLedger, num_tokens: int) -> Anchor | None:
        """Return the anchor of exactly the first ``num_tokens`` tokens, or None."""
        return next(
            (
                anchor
                for anchor in self
                if len(anchor.sequence.ledger) == num_tokens
                and ledger.starts_with(anchor.sequence.ledger, num_tokens)
            ),
            None,
        )

    def put(self, anchor: Anchor) -> None:
        """Fill an empty place."""
        assert self._places[anchor.anchor_id] is None, "an anchor is removed before it is replaced"
        self._places[anchor.anchor_id] = anchor

    def remove(self, anchor_id: AnchorId) -> None:
        """Empty a place."""
        self._places[anchor_id] = None

    def mark(self, ledger: TokenLedger, num_tokens: int) -> None:
        """Record that a client marked this head, if it is an anchor."""
        anchor = self.find_head(ledger, num_tokens)
        if anchor is not None:
            self._places[anchor.anchor_id] = replace(anchor, is_marked=True)

    def note_seen(self, ledger: TokenLedger, num_tokens: int) -> None:
        """Count one more conversation that began with this head."""
        digest = ledger.digest_before(num_tokens)
        self._times_seen[digest] = self._times_seen.pop(digest, 0) + 1
        while len(self._times_seen) > _MAX_SEEN:
            self._times_seen.popitem(last=False)

    def times_seen(self, ledger: TokenLedger, num_tokens: int) -> int:
        """Return how many recent conversations of the same tenant began with this head."""
        return self._times_seen.get(ledger.digest_before(num_tokens), 0)

    def choose_place(
        self,
        newcomer: Sequence,
        *,
        is_wanted: bool,
        order: EvictionOrder,
        quota: Quota | None,
        reserved: Collection[Anchor] = (),
    ) -> AnchorId | None:
        """Return the place for a head, empty or to be evicted; None if the head is worth none.

        Args:
            newcomer: the head as a sequence, used now.
            is_wanted: a client marked it, or a second conversation began with it.
            order: the order of all kept sequences.
            quota: that of the head's tenant, if it has one.
            reserved: anchors that the running step captures; their places are empty, but taken.
        """
        own = [anchor for anchor in self if anchor.sequence.tenant == newcomer.tenant]
        num_own = len(own) + sum(one.sequence.tenant == newcomer.tenant for one in reserved)
        is_at_quota = quota is not None and num_own >= quota.anchors
        if not is_at_quota:
            taken = {anchor.anchor_id for anchor in reserved}
            for index, anchor in enumerate(self._places):
                if anchor is None and index not in taken:
                    return AnchorId(index)
        # Within its quota a tenant is guaranteed a place, whatever the values of the others.
        is_guaranteed = quota is not None and not is_at_quota
        if is_guaranteed:
            rivals = [one for one in self if one.sequence.tenant != newcomer.tenant]
        else:
            candidates = own if is_at_quota else list(self)
            rivals = [one for one in candidates if is_wanted or not one.is_proven]
        loser = order.first((one.sequence for one in rivals), newcomer.tenant)
        if loser is None or not (is_guaranteed or order.rank(loser) < order.rank(newcomer)):
            return None
        return next(one.anchor_id for one in rivals if one.sequence is loser)


def aligned(heads: tuple[Head, ...], after: int, before: int) -> tuple[Head, ...]:
    """Return the heads, cut to whole pages, that end between ``after`` and ``before``."""
    found: dict[int, bool] = {}
    for head in heads:
        num_tokens = head.num_tokens // PAGE_TOKENS * PAGE_TOKENS
        if after < num_tokens < before:
            found[num_tokens] = found.get(num_tokens, False) or head.is_marked
    return tuple(Head(num_tokens, found[num_tokens]) for num_tokens in sorted(found))
