"""Applies admission plans: the only code that moves a kept sequence to a lane.

It decides nothing. The places of sequences, and how they are evicted, are in `holdings`.
"""

from __future__ import annotations

from typing import TypedDict

from kvreg_service.core.admission import AdmissionPlan, Displacement, Fate
from kvreg_service.core.anchors import Anchor, aligned
from kvreg_service.core.events import Admitted, Attached, Detached, Forked
from kvreg_service.core.holdings import Holdings
from kvreg_service.core.ids import PAGE_TOKENS, EntryId, LaneId, pages_for
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.lane import Lane, Run
from kvreg_service.core.request import Admission, Request
from kvreg_service.core.reuse import Resume
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.shares import Shares
from kvreg_service.core.step import SlotCopy, StateMove


class _Place(TypedDict, total=False):
    """The place of a kept sequence: one of the three."""

    lane: LaneId
    entry: EntryId
    anchor: Anchor


class Placement:
    """Puts requests on lanes.

    Effects are immediate in the bookkeeping. The returned moves do the same on the device, and must
    be executed before anything else is computed.
    """

    def __init__(self, holdings: Holdings, shares: Shares) -> None:
        self._holdings = holdings
        self._shares = shares
        self._registry = holdings.registry
        self._pages = holdings.pages

    def admit(self, plan: AdmissionPlan, promised_pages: int, now_s: float) -> list[StateMove]:
        """Put the plan's request on its lane and return the state moves, in order.

        Effects: if it raises, the pools are consistent, and the sequences that the plan names are
        lost, because the moves that they depend on are not executed.
        """
        before, num_events = self._kept_places(), len(self._holdings.events)
        try:
            moves = self._admit(plan, promised_pages, now_s)
            self._note_heads(plan)
            self._shares.settle(plan.request.tenant, now_s)
            return moves
        except Exception:
            del self._holdings.events[num_events:]
            self._abandon(plan, before)
            raise

    def _admit(self, plan: AdmissionPlan, promised_pages: int, now_s: float) -> list[StateMove]:
        lane = self._holdings.lanes[plan.lane]
        gap_s = max(0.0, now_s - plan.resume.sequence.last_used_s) if plan.resume else None
        moves: list[StateMove] = []
        fork: Sequence | None = None
        if plan.resume and plan.fork_to is not None:
            fork, fork_moves = self._fork(plan.resume, plan.fork_to, now_s)
            moves += fork_moves
        moves += self._bring(plan.resume, lane, plan.displacement)
        if plan.resume is None:
            sequence = self._new_sequence(plan.request, now_s)
        elif plan.resume.anchor is not None:
            sequence = self._begin_at_anchor(plan.resume, plan.request, now_s)
        else:
            sequence = plan.resume.sequence
            self._wake(sequence, plan.resume.position)
        if fork is not None and plan.fork_to is not None:
            if plan.request.cache_policy.retain:
                fork.superseded_by = sequence.sequence_id
            else:
                fork.last_used_s = now_s
                fork.pinned_until_s, sequence.pinned_until_s = sequence.pinned_until_s, None
            if self._registry.find(plan.fork_to) is None:
                # The attached sequence left its states in the entry: they belong to the fork now.
                self._registry.fork(fork, plan.fork_to, from_lane=None, from_entry=plan.fork_to)
        sequence.ledger = plan.request.prompt.copy(plan.request.prompt_tokens)
        sequence.frontier = plan.cached_tokens
        sequence.has_current = True
        sequence.last_used_s = now_s
        if plan.request.cache_policy.retain:
            sequence.priority = plan.request.cache_policy.priority
        lane.sequence = sequence
        lane.run = Run(
            request=plan.request,
            capture_at=plan.capture_at,
            heads=plan.heads,
            promised_pages=promised_pages,
            touched_entries=_entries_written(plan),
            stand_in=fork.sequence_id if fork and not plan.request.cache_policy.retain else None,
        )
        self._announce(plan, sequence, now_s, gap_s)
        return moves + self._own_tail_page(sequence, now_s)

    def _note_heads(self, plan: AdmissionPlan) -> None:
        request, anchors = plan.request, self._holdings.anchors
        if request.cache_policy.may_reuse:
            for head in plan.heads:
                anchors.note_seen(request.prompt, head.num_tokens)
        if request.cache_policy.retain:
            for head in aligned(request.heads, after=0, before=request.prompt_tokens):
                if head.is_marked:
                    anchors.mark(request.prompt, head.num_tokens)

    def _abandon(self, plan: AdmissionPlan, before: list[tuple[Sequence, _Place]]) -> None:
        lane = self._holdings.lanes[plan.lane]
        lane.sequence = lane.run = None
        for entry in {plan.resume.entry if plan.resume else None, *_entries_written(plan)}:
            if entry is not None and self._registry.find(entry) is not None:
                self._registry.remove(entry)
        self._holdings.recount()
        kept = self._holdings.kept()
        for sequence, place in before:
            if not any(sequence is one for one in kept):
                self._holdings.events.append(
                    self._holdings.evicted(sequence, EvictionReason.FAILED, **place)
                )

    def _kept_places(self) -> list[tuple[Sequence, _Place]]:
        lanes = self._holdings.lanes
        places: list[tuple[Sequence, _Place]] = [
            (lane.kept, {"lane": lane.lane_id}) for lane in lanes if lane.kept
        ]
        places += [(sequence, {"entry": entry}) for entry, sequence in self._registry]
        return places + [(one.sequence, {"anchor": one}) for one in self._holdings.anchors]

    def _announce(
        self, plan: AdmissionPlan, sequence: Sequence, now_s: float, gap_s: float | None
    ) -> None:
        events = self._holdings.events
        admission = Admission(
            lane=plan.lane,
            sequence_id=sequence.sequence_id,
            prompt_tokens=plan.request.prompt_tokens,
            cached_tokens=plan.cached_tokens,
            reuse_path=plan.reuse_path,
            attach=plan.attach,
            # The clock was read before the request arrived, if it arrived a moment ago.
            queue_s=max(0.0, now_s - plan.request.arrival_s),
            gap_s=gap_s,
            diverged_at=plan.diverged_at,
            regret_tokens=plan.regret_tokens,
        )
        events.append(Admitted(plan.request.request_id, admission))
        if plan.resume is not None and plan.resume.entry is not None:
            events.append(
                Attached(
                    request_id=plan.request.request_id,
                    sequence_id=sequence.sequence_id,
                    entry=plan.resume.entry,
                    lane=plan.lane,
                    path=plan.resume.path,
                    is_exchange=_is_exchange(plan.displacement),
                )
            )

    def _fork(
        self, resume: Resume, entry: EntryId, now_s: float
    ) -> tuple[Sequence, list[StateMove]]:
        """Copy the resumed sequence to ``entry``; in place when it is there already."""
        origin = resume.sequence
        if resume.entry != entry and self._registry.find(entry) is not None:
            self._holdings.evict(entry, EvictionReason.ENTRY_NEEDED)
        fork = Sequence(
            sequence_id=self._holdings.take_sequence_id(),
            ledger=origin.ledger,
            created_s=now_s,
            last_used_s=origin.last_used_s,
            frontier=origin.frontier,
            has_current=origin.has_current and self._registry.layout.keep_current,
            checkpoint=origin.checkpoint,
            num_hits=origin.num_hits,
            priority=origin.priority,
            family=origin.family,
            expires_s=origin.expires_s,
            anchored_by=origin.anchored_by,
            anchored_tokens=origin.anchored_tokens,
        )
        fork.pages, copies = self._pages.fork(
            origin.pages[: pages_for(fork.reusable_tokens)], resume.position // PAGE_TOKENS
        )
        moves: list[StateMove] = list(copies)
        if resume.entry != entry:
            moves += self._registry.fork(
                fork, entry, from_lane=resume.lane, from_entry=resume.entry
            )
        held_bytes = self._holdings.cost.held_bytes(fork)
        self._holdings.events.append(
            Forked(fork.sequence_id, origin.sequence_id, entry, held_bytes)
        )
        return fork, moves

    def _bring(
        self,
        resume: Resume | None,
        lane: Lane,
        displacement: Displacement | None,
    ) -> list[StateMove]:
        """Free the lane and move the resumed state to it."""
        moves: list[StateMove] = []
        displaced = lane.sequence
        if displacement is not None and displaced is not None:
            match displacement.fate:
                case Fate.DROP:
                    self._holdings.give_up_lane(lane, EvictionReason.DISPLACED)
                case Fate.DETACH:
                    assert displacement.entry is not None, "a detach names its entry"
                    if self._registry.find(displacement.entry) is not None:
                        self._holdings.evict(displacement.entry, EvictionReason.ENTRY_NEEDED)
                    moves += self._registry.detach(displaced, lane.lane_id, displacement.entry)
                    self._detached(displaced, lane, displacement.entry)
                case Fate.EXCHANGE:
                    pass
        if resume is None:
            return moves
        if resume.anchor is not None:
            layout = self._registry.layout
            moves.append(SlotCopy(layout.anchor(resume.anchor), layout.lane_current(lane.lane_id)))
            return moves
        if resume.entry is None:
            if resume.at_checkpoint:
                moves.append(self._registry.restore(lane.lane_id))
            return moves
        if _is_exchange(displacement) and displaced is not None:
            moves += self._registry.exchange(
                resume.entry, lane.lane_id, displaced, at_checkpoint=resume.at_checkpoint
            )
            self._detached(displaced, lane, resume.entry)
        else:
            moves += self._registry.attach(
                resume.entry, lane.lane_id, at_checkpoint=resume.at_checkpoint
            )
        return moves

    def _detached(self, sequence: Sequence, lane: Lane, entry: EntryId) -> None:
        self._holdings.rewind_kept_pages(sequence, sequence.reusable_tokens)
        held_bytes = self._holdings.cost.held_bytes(sequence)
        self._holdings.events.append(
            Detached(sequence.sequence_id, lane.lane_id, entry, held_bytes)
        )
        lane.sequence = None

    def _wake(self, sequence: Sequence, position: int) -> None:
        """Turn a sequence at rest into a running one that continues at ``position``."""
        self._holdings.rewind_kept_pages(sequence, position)
        self._pages.resume(sequence.pages)
        sequence.num_hits += 1
        sequence.superseded_by = None
        sequence.is_lent = False
        sequence.forget_anchor_beyond(position)

    def _begin_at_anchor(self, resume: Resume, request: Request, now_s: float) -> Sequence:
        """Start a sequence with the pages of an anchor, which is not changed."""
        sequence = self._new_sequence(request, now_s)
        self._pages.share(resume.sequence.pages, is_kept=False)
        sequence.pages = list(resume.sequence.pages)
        sequence.anchored_by = resume.sequence.sequence_id
        sequence.anchored_tokens = resume.position
        resume.sequence.num_hits += 1
        resume.sequence.last_used_s = now_s
        return sequence

    def _own_tail_page(self, sequence: Sequence, now_s: float) -> list[StateMove]:
        """Make the page that a resumed sequence writes next writable, by a copy if it is shared.

        An older fork of the sequence, or an anchor, may hold later tokens of that page; or the
        sequence is such a fork itself.
        """
        if sequence.frontier % PAGE_TOKENS == 0:
            return []
        moves: list[StateMove] = []
        tail = sequence.pages[-1]
        while self._pages.references(tail) > 1 and not self._pages.num_free:
            if not self._holdings.evict_for_pages(sequence.tenant, now_s):
                break
        if self._pages.references(tail) > 1:
            copy = self._pages.unshare(
                tail, after=sequence.pages[-2] if sequence.pages[1:] else None
            )
            sequence.pages[-1] = copy.dst
            moves.append(copy)
        self._pages.unseal(sequence.pages[-1:])
        return moves

    def _new_sequence(self, request: Request, now_s: float) -> Sequence:
        sequence_id = self._holdings.take_sequence_id()
        return Sequence(
            sequence_id=sequence_id,
            ledger=request.prompt,
            created_s=now_s,
            last_used_s=now_s,
            family=sequence_id,
        )


def _is_exchange(displacement: Displacement | None) -> bool:
    return displacement is not None and displacement.fate is Fate.EXCHANGE


def _entries_written(plan: AdmissionPlan) -> tuple[EntryId, ...]:
    entries = {plan.fork_to, plan.displacement.entry if plan.displacement else None}
    return tuple(sorted(entry for entry in entries if entry is not None))
