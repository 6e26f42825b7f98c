"""All sequences and their places: lanes, entries, anchors and pages; and how a sequence leaves.

Owns these together, so that pages and places change together or not at all. `placement` puts
requests on lanes; `shares` limits what may be promised.
"""

from __future__ import annotations

from collections.abc import Collection

from kvreg_service.core.anchors import Anchor, AnchorTable
from kvreg_service.core.errors import InvariantBroken
from kvreg_service.core.events import Event, Evicted
from kvreg_service.core.eviction import EvictionOrder
from kvreg_service.core.ids import EntryId, LaneId, SequenceId, pages_for
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.lane import Lane
from kvreg_service.core.pages import PagePool
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.quota import Quota
from kvreg_service.core.registry import Registry
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.slots import SlotLayout
from kvreg_service.core.value import CostModel


class Holdings:
    """All sequences. Effects are immediate in the bookkeeping.

    ``events`` collects events until the scheduler returns them.
    """

    def __init__(
        self, layout: SlotLayout, num_pages: int, policy: EvictionPolicy, cost: CostModel
    ) -> None:
        self.lanes = [Lane(LaneId(index)) for index in range(layout.lanes)]
        self.registry = Registry(layout)
        self.anchors = AnchorTable(layout)
        self.pages = PagePool(num_pages)
        self.quotas: dict[str, Quota] = {}
        self.events: list[Event] = []
        self.policy = policy
        self.cost = cost
        self._last_sequence_id = 0

    # Queries.

    def running(self) -> list[Sequence]:
        """Return every sequence that a request runs on."""
        return [lane.sequence for lane in self.lanes if lane.sequence and lane.is_busy]

    def kept(self) -> list[Sequence]:
        """Return every sequence at rest: on lanes, in entries, as anchors."""
        on_lanes = [lane.kept for lane in self.lanes if lane.kept is not None]
        in_entries = [sequence for _, sequence in self.registry]
        return on_lanes + in_entries + [anchor.sequence for anchor in self.anchors]

    def sequences(self) -> list[Sequence]:
        """Return every sequence, at rest or running."""
        return self.kept() + self.running()

    def order(self, now_s: float) -> EvictionOrder:
        """Return the eviction order at ``now_s``."""
        return EvictionOrder(self.kept(), self.running(), self.policy, self.quotas, now_s)

    def next_expiry_s(self) -> float | None:
        """Return when the next time to live of a kept sequence ends, if any does."""
        times = [
            max(one.expires_s, one.pinned_until_s or one.expires_s)
            for one in self.kept()
            if one.expires_s is not None
        ]
        return min(times, default=None)

    def take_sequence_id(self) -> SequenceId:
        """Return an id that no sequence has had yet."""
        self._last_sequence_id += 1
        return SequenceId(self._last_sequence_id)

    # Pages of running sequences.

    def take_pages(self, sequence: Sequence, end: int, promised_pages: int, now_s: float) -> None:
        """Give a running sequence the pages for its first ``end`` tokens.

        Evicts kept sequences, least valuable first, only for what the free pages do not cover.

        Raises:
            OutOfPages: running sequences hold all pages, which promises rule out.
        """
        needed = pages_for(end) - len(sequence.pages)
        if needed <= 0:
            return
        while self.pages.num_free < needed and self.evict_for_pages(sequence.tenant, now_s):
            pass
        sequence.pages.extend(
            self.pages.allocate(
                needed,
                after=sequence.pages[-1] if sequence.pages else None,
                room=promised_pages,
            )
        )

    def evict_for_pages(self, tenant: str, now_s: float) -> bool:
        """Evict the least valuable kept sequence that a request of ``tenant`` may take.

        One without pages of its own would free nothing, and stays while there are others.

        Returns:
            False when there is none.
        """
        victim = self.first_to_free(self.kept(), tenant, self.order(now_s))
        if victim is None:
            return False
        self.give_up(victim, EvictionReason.PAGES_NEEDED)
        return True

    def first_to_free(
        self, candidates: Collection[Sequence], tenant: str, order: EvictionOrder
    ) -> Sequence | None:
        """Return the sequence to evict first to free pages; None if none may be evicted."""
        freeing = [one for one in candidates if self.pages.frees_any(one.pages)]
        return order.first(freeing, tenant) or order.first(candidates, tenant)

    # The end of a run.

    def rest(self, lane: Lane, now_s: float) -> None:
        """End a run and keep its sequence on the lane, as far as it can be resumed."""
        sequence = lane.require_sequence()
        run, lane.run = lane.run, None
        sequence.last_used_s = now_s
        if run is not None and run.request.cache_policy.retain:
            ttl_s = run.request.cache_policy.ttl_s
            sequence.expires_s = now_s + ttl_s if ttl_s is not None else None
        sequence.ledger.truncate(sequence.frontier)
        sequence.forget_anchor_beyond(sequence.reusable_tokens)
        self.pages.keep(sequence.pages)
        if sequence.reusable_tokens == 0:
            self._empty_lane(lane)
        else:
            self.rewind_kept_pages(sequence, sequence.reusable_tokens)

    def rewind(self, lane: Lane, now_s: float) -> None:
        """End a run and go back to its checkpoint; the current state is lost.

        Nothing is kept while a fork of the reused sequence is kept in its place.
        """
        stand_in = lane.run.stand_in if lane.run else None
        if stand_in is not None and any(one.sequence_id == stand_in for one in self.kept()):
            lane.run = None
            self.pages.keep(lane.require_sequence().pages)
            self._empty_lane(lane)
            return
        sequence = lane.require_sequence()
        position = sequence.checkpoint.position if sequence.checkpoint else 0
        sequence.frontier = position
        sequence.has_current = False
        self.rest(lane, now_s)

    def rewind_kept_pages(self, sequence: Sequence, position: int) -> None:
        """Release the pages of a sequence at rest that lie wholly beyond ``position``."""
        count = pages_for(position)
        self.pages.release(sequence.pages[count:], is_kept=True)
        del sequence.pages[count:]

    # Eviction.

    def expire(self, now_s: float) -> None:
        """Remove pins that are over, and evict every sequence at rest whose time to live is over.

        A pin outlasts a time to live.
        """
        for sequence in self.kept():
            if sequence.pinned_until_s is not None and now_s >= sequence.pinned_until_s:
                sequence.pinned_until_s = None
            is_over = sequence.expires_s is not None and now_s >= sequence.expires_s
            if is_over and not sequence.is_pinned(now_s):
                self.give_up(sequence, EvictionReason.EXPIRED)

    def give_up(self, sequence: Sequence, reason: EvictionReason) -> None:
        """Evict a sequence at rest from its lane, entry or anchor place."""
        anchor = self.anchors.find_by_sequence(sequence)
        if anchor is not None:
            self.remove_anchor(anchor, reason)
            return
        entry = self.registry.find_entry(sequence)
        if entry is not None:
            self.evict(entry, reason)
            return
        for lane in self.lanes:
            if lane.kept is sequence:
                self.give_up_lane(lane, reason)

    def give_up_lane(self, lane: Lane, reason: EvictionReason) -> None:
        """End the run of a lane, if any, and evict its sequence."""
        sequence = lane.require_sequence()
        event = self.evicted(sequence, reason, lane=lane.lane_id)
        if lane.run is not None:
            lane.run = None
            self.pages.keep(sequence.pages)
        self.events.append(event)
        self._empty_lane(lane)

    def evict(self, entry: EntryId, reason: EvictionReason) -> None:
        """Empty an entry and release its pages.

        Raises:
            NotFound: there is no such entry, or it is empty.
        """
        sequence = self.registry.get(entry)
        event = self.evicted(sequence, reason, entry=entry)
        self.registry.remove(entry)
        self.events.append(event)
        self.pages.release(sequence.pages, is_kept=True)

    def remove_anchor(self, anchor: Anchor, reason: EvictionReason) -> None:
        """Empty an anchor place. Conversations that began there keep the pages they share."""
        event = self.evicted(anchor.sequence, reason, anchor=anchor)
        self.anchors.remove(anchor.anchor_id)
        self.events.append(event)
        for one in self.sequences():
            if one.anchored_by == anchor.sequence.sequence_id:
                one.forget_anchor_beyond(0)
        self.pages.release(anchor.sequence.pages, is_kept=True)

    def scrap(self, lane: Lane) -> None:
        """Empty a lane after a failure in the middle of a change. Its run and sequence are lost.

        Effects: recounts all page references, which undoes an incomplete change.
        """
        sequence = lane.sequence
        lane.sequence = lane.run = None
        self.recount()
        if sequence is not None:
            self.events.append(self.evicted(sequence, EvictionReason.FAILED, lane=lane.lane_id))

    def recount(self) -> None:
        """Recount all page references from the page tables of the sequences."""
        self.pages.recount([s.pages for s in self.running()], [s.pages for s in self.kept()])

    def evicted(
        self,
        sequence: Sequence,
        reason: EvictionReason,
        *,
        entry: EntryId | None = None,
        lane: LaneId | None = None,
        anchor: Anchor | None = None,
    ) -> Evicted:
        """Build the event of a sequence that is evicted from the given place."""
        return Evicted(
            sequence_id=sequence.sequence_id,
            entry=entry,
            lane=lane,
            anchor=anchor.anchor_id if anchor is not None else None,
            reason=reason,
            tenant=sequence.tenant,
            tokens=sequence.reusable_tokens,
            held_bytes=self.cost.held_bytes(sequence),
        )

    def _empty_lane(self, lane: Lane) -> None:
        sequence = lane.require_sequence()
        self.pages.release(sequence.pages, is_kept=True)
        sequence.pages.clear()
        lane.sequence = None

    def check_invariants(self) -> None:
        """Raise InvariantBroken when pages, lanes, entries and anchors contradict each other."""
        running, kept = self.running(), self.kept()
        self.pages.check_invariants([s.pages for s in running], [s.pages for s in kept])
        ids = [sequence.sequence_id for sequence in running + kept]
        if len(set(ids)) != len(ids):
            raise InvariantBroken(f"a sequence is in two places: {sorted(ids)}")
        for sequence in running + kept:
            sequence.check_invariants()
        for sequence in kept:
            if sequence.reusable_tokens == 0:
                raise InvariantBroken(
                    f"sequence {sequence.sequence_id} is kept and cannot be resumed"
                )
        for entry, sequence in self.registry:
            if sequence.has_current and not self.registry.layout.keep_current:
                raise InvariantBroken(f"entry {entry} claims a current state in drop mode")
        for anchor in self.anchors:
            anchor.check_invariants()
