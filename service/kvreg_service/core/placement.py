"""Carries out admission plans and gives sequences up: the only place where they change hands.

Owns the lanes, the registry and the page pool together, so that pages, entries and lanes change in
one step or not at all.
"""

from __future__ import annotations

from kvreg_service.core.admission import AdmissionPlan, Displacement, Fate, Resume
from kvreg_service.core.errors import InvariantBroken
from kvreg_service.core.events import (
    Admitted,
    Attached,
    Detached,
    Event,
    Evicted,
    EvictionReason,
    Forked,
)
from kvreg_service.core.ids import PAGE_TOKENS, EntryId, LaneId, SequenceId, pages_for
from kvreg_service.core.lane import Lane, Run, hits_by_id
from kvreg_service.core.pages import PagePool
from kvreg_service.core.registry import Registry
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.slots import SlotLayout
from kvreg_service.core.step import StateMove
from kvreg_service.core.value import CostModel, EvictionPolicy, rank


class Placement:
    """Who is where: lanes, entries and pages.

    Effects are immediate in the bookkeeping; the returned moves make the device agree, and must be
    carried out before anything else is computed.
    """

    def __init__(
        self, layout: SlotLayout, num_pages: int, policy: EvictionPolicy, cost: CostModel
    ) -> None:
        self.lanes = [Lane(LaneId(index)) for index in range(layout.lanes)]
        self.registry = Registry(layout)
        self.pages = PagePool(num_pages)
        self.events: list[Event] = []
        self._policy = policy
        self._cost = cost
        self._next_sequence = 0

    def admit(self, plan: AdmissionPlan, promised_pages: int, now_s: float) -> list[StateMove]:
        """Put the plan's request on its lane and return the state moves, in order.

        Effects: when anything raises, the pools are consistent and the sequences that the plan
        names are gone, because nobody will carry out the moves that they rely on.
        """
        before, num_events = self._kept_places(), len(self.events)
        try:
            return self._admit(plan, promised_pages, now_s)
        except Exception:
            del self.events[num_events:]
            self._abandon(plan, before)
            raise

    def _admit(self, plan: AdmissionPlan, promised_pages: int, now_s: float) -> list[StateMove]:
        lane = self.lanes[plan.lane]
        moves: list[StateMove] = []
        fork: Sequence | None = None
        if plan.resume and plan.fork_to is not None:
            fork, fork_moves = self._fork(plan.resume, plan.fork_to, now_s)
            moves += fork_moves
        moves += self._bring(plan.resume, lane, plan.displacement)
        if plan.resume:
            sequence = plan.resume.sequence
            self._wake(sequence, plan.resume.position)
        else:
            sequence = self._new_sequence(plan.request, now_s)
        if fork is not None and plan.fork_to is not None:
            if plan.request.retain:
                fork.superseded_by = sequence.sequence_id
            else:
                fork.last_used_s = now_s
            if self.registry.find(plan.fork_to) is None:
                # The attached sequence has left its states behind: they are the fork's now.
                self.registry.fork(fork, plan.fork_to, from_lane=None, from_entry=plan.fork_to)
        sequence.ledger = plan.request.prompt.copy(plan.request.prompt_tokens)
        sequence.frontier = plan.cached_tokens
        sequence.has_current = True
        sequence.last_used_s = now_s
        sequence.priority = plan.request.priority
        lane.sequence = sequence
        lane.run = Run(
            request=plan.request,
            cached_tokens=plan.cached_tokens,
            capture_at=plan.capture_at,
            promised_pages=promised_pages,
            touched_entries=_entries_written(plan),
            stand_in=fork.sequence_id if fork and not plan.request.retain else None,
        )
        self._announce(plan, sequence, now_s)
        return moves + self._own_tail_page(sequence, now_s)

    def take_pages(self, sequence: Sequence, end: int, promised_pages: int, now_s: float) -> None:
        """Give a running sequence the pages for its first ``end`` tokens.

        Takes from kept sequences, least valuable first, only what the free pages do not cover.

        Raises:
            OutOfPages: running sequences hold everything, which promises rule out.
        """
        needed = pages_for(end) - len(sequence.pages)
        if needed <= 0:
            return
        while self.pages.num_free < needed and self._evict_for_pages(now_s):
            pass
        sequence.pages.extend(
            self.pages.allocate(
                needed,
                after=sequence.pages[-1] if sequence.pages else None,
                room=promised_pages,
            )
        )

    def rest(self, lane: Lane, now_s: float) -> None:
        """End a run and keep its sequence on the lane, as far as it can be resumed."""
        sequence = self._sequence_of(lane)
        lane.run = None
        sequence.last_used_s = now_s
        sequence.ledger.truncate(sequence.frontier)
        self.pages.keep(sequence.pages)
        if sequence.reusable_tokens == 0:
            self._give_up_lane(lane)
        else:
            self._rewind_kept_pages(sequence, sequence.reusable_tokens)

    def rewind(self, lane: Lane, now_s: float) -> None:
        """End a run and keep what its lane's checkpoint still holds; the current state is lost.

        Nothing is kept while a fork stands in for the borrowed sequence.
        """
        stand_in = lane.run.stand_in if lane.run else None
        if any(sequence.sequence_id == stand_in for sequence in self.kept()):
            self._discard(lane)
            return
        sequence = self._sequence_of(lane)
        position = sequence.checkpoint.position if sequence.checkpoint else 0
        sequence.frontier = position
        sequence.has_current = False
        self.rest(lane, now_s)

    def give_up(self, lane: Lane, reason: EvictionReason) -> None:
        """End a run, if any, and forget the lane's sequence."""
        sequence = self._sequence_of(lane)
        if lane.run is not None:
            lane.run = None
            self.pages.keep(sequence.pages)
        self.events.append(self._evicted(sequence, reason, lane=lane.lane_id))
        self._give_up_lane(lane)

    def evict(self, entry: EntryId, reason: EvictionReason) -> None:
        """Empty an entry and give back its pages.

        Raises:
            NotFound: there is no such entry, or it is empty.
        """
        sequence = self.registry.remove(entry)
        self.events.append(self._evicted(sequence, reason, entry=entry))
        self.pages.release(sequence.pages, is_kept=True)

    def drop(self, sequence: Sequence) -> None:
        """Give up a sequence at rest because somebody asked for it."""
        self._give_up_kept(sequence, EvictionReason.REQUESTED)

    def running(self) -> list[Sequence]:
        """Return every sequence that a request runs on."""
        return [lane.sequence for lane in self.lanes if lane.sequence and lane.is_busy]

    def kept(self) -> list[Sequence]:
        """Return every sequence at rest."""
        on_lanes = [lane.kept for lane in self.lanes if lane.kept is not None]
        return on_lanes + [sequence for _, sequence in self.registry]

    def check_invariants(self) -> None:
        """Raise InvariantBroken when pages, lanes and entries contradict each other."""
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

    def _abandon(
        self, plan: AdmissionPlan, before: list[tuple[Sequence, EntryId | None, LaneId | None]]
    ) -> None:
        lane = self.lanes[plan.lane]
        lane.sequence = lane.run = None
        for entry in {plan.resume.entry if plan.resume else None, *_entries_written(plan)}:
            if entry is not None and self.registry.find(entry) is not None:
                self.registry.remove(entry)
        kept = self.kept()
        self.pages.recount([s.pages for s in self.running()], [s.pages for s in kept])
        for sequence, entry, lane_id in before:
            if not any(sequence is one for one in kept):
                self.events.append(
                    self._evicted(sequence, EvictionReason.FAILED, entry=entry, lane=lane_id)
                )

    def _kept_places(self) -> list[tuple[Sequence, EntryId | None, LaneId | None]]:
        return [(lane.kept, None, lane.lane_id) for lane in self.lanes if lane.kept] + [
            (sequence, entry, None) for entry, sequence in self.registry
        ]

    def _announce(self, plan: AdmissionPlan, sequence: Sequence, now_s: float) -> None:
        self.events.append(
            Admitted(
                request_id=plan.request.request_id,
                sequence_id=sequence.sequence_id,
                lane=plan.lane,
                prompt_tokens=plan.request.prompt_tokens,
                cached_tokens=plan.cached_tokens,
                reuse_path=plan.reuse_path,
                attach=plan.attach,
                queue_s=now_s - plan.request.arrival_s,
                diverged_at=plan.diverged_at,
                regret_tokens=plan.regret_tokens,
            )
        )
        if plan.resume is not None and plan.resume.entry is not None:
            self.events.append(
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
        if resume.entry != entry and self.registry.find(entry) is not None:
            self.evict(entry, EvictionReason.ENTRY_NEEDED)
        fork = Sequence(
            sequence_id=self._take_sequence_id(),
            ledger=origin.ledger,
            created_s=now_s,
            last_used_s=origin.last_used_s,
            frontier=origin.frontier,
            has_current=origin.has_current and self.registry.layout.keep_current,
            checkpoint=origin.checkpoint,
            num_hits=origin.num_hits,
            priority=origin.priority,
            family=origin.family,
        )
        fork.pages, copies = self.pages.fork(
            origin.pages[: pages_for(fork.reusable_tokens)], resume.position // PAGE_TOKENS
        )
        moves: list[StateMove] = list(copies)
        if resume.entry != entry:
            moves += self.registry.fork(fork, entry, from_lane=resume.lane, from_entry=resume.entry)
        self.events.append(
            Forked(fork.sequence_id, origin.sequence_id, entry, self._cost.held_bytes(fork))
        )
        return fork, moves

    def _bring(
        self,
        resume: Resume | None,
        lane: Lane,
        displacement: Displacement | None,
    ) -> list[StateMove]:
        """Make room on the lane and bring the resumed sequence to it."""
        moves: list[StateMove] = []
        displaced = lane.sequence
        if displacement is not None and displaced is not None:
            match displacement.fate:
                case Fate.DROP:
                    self.give_up(lane, EvictionReason.DISPLACED)
                case Fate.DETACH:
                    assert displacement.entry is not None, "a detach names its entry"
                    if self.registry.find(displacement.entry) is not None:
                        self.evict(displacement.entry, EvictionReason.ENTRY_NEEDED)
                    moves += self.registry.detach(displaced, lane.lane_id, displacement.entry)
                    self._detached(displaced, lane, displacement.entry)
                case Fate.EXCHANGE:
                    pass
        if resume is None:
            return moves
        if resume.entry is None:
            if resume.at_checkpoint:
                moves.append(self.registry.restore(lane.lane_id))
            return moves
        if _is_exchange(displacement) and displaced is not None:
            moves += self.registry.exchange(
                resume.entry, lane.lane_id, displaced, at_checkpoint=resume.at_checkpoint
            )
            self._detached(displaced, lane, resume.entry)
        else:
            moves += self.registry.attach(
                resume.entry, lane.lane_id, at_checkpoint=resume.at_checkpoint
            )
        return moves

    def _detached(self, sequence: Sequence, lane: Lane, entry: EntryId) -> None:
        self._rewind_kept_pages(sequence, sequence.reusable_tokens)
        self.events.append(
            Detached(sequence.sequence_id, lane.lane_id, entry, self._cost.held_bytes(sequence))
        )
        lane.sequence = None

    def _wake(self, sequence: Sequence, position: int) -> None:
        """Turn a sequence at rest into a running one that goes on from ``position``."""
        self._rewind_kept_pages(sequence, position)
        self.pages.resume(sequence.pages)
        sequence.num_hits += 1
        sequence.superseded_by = None

    def _own_tail_page(self, sequence: Sequence, now_s: float) -> list[StateMove]:
        """Make the page that a resumed sequence writes next writable, by a copy if it is shared.

        An older fork of the sequence may lie further on in that page, or the sequence may be such a
        fork itself.
        """
        if sequence.frontier % PAGE_TOKENS == 0:
            return []
        moves: list[StateMove] = []
        tail = sequence.pages[-1]
        while self.pages.references(tail) > 1 and not self.pages.num_free:
            if not self._evict_for_pages(now_s):
                break
        if self.pages.references(tail) > 1:
            copy = self.pages.unshare(
                tail, after=sequence.pages[-2] if sequence.pages[1:] else None
            )
            sequence.pages[-1] = copy.dst
            moves.append(copy)
        self.pages.unseal(sequence.pages[-1:])
        return moves

    def _evict_for_pages(self, now_s: float) -> bool:
        """Give up the least valuable kept sequence; return False when there is none."""
        alive = hits_by_id(self.lanes, [sequence for _, sequence in self.registry])
        kept = self.kept()
        if not kept:
            return False
        victim = min(kept, key=lambda s: rank(s, self._policy, alive, now_s))
        self._give_up_kept(victim, EvictionReason.PAGES_NEEDED)
        return True

    def _give_up_kept(self, victim: Sequence, reason: EvictionReason) -> None:
        for entry, sequence in self.registry:
            if sequence is victim:
                self.evict(entry, reason)
                return
        for lane in self.lanes:
            if lane.kept is victim:
                self.give_up(lane, reason)

    def _rewind_kept_pages(self, sequence: Sequence, position: int) -> None:
        """Give back the pages of a sequence at rest that lie wholly beyond ``position``."""
        count = pages_for(position)
        self.pages.release(sequence.pages[count:], is_kept=True)
        del sequence.pages[count:]

    def _discard(self, lane: Lane) -> None:
        lane.run = None
        self.pages.keep(self._sequence_of(lane).pages)
        self._give_up_lane(lane)

    def _give_up_lane(self, lane: Lane) -> None:
        sequence = self._sequence_of(lane)
        self.pages.release(sequence.pages, is_kept=True)
        sequence.pages.clear()
        lane.sequence = None

    def _new_sequence(self, request: Request, now_s: float) -> Sequence:
        sequence_id = self._take_sequence_id()
        return Sequence(
            sequence_id=sequence_id,
            ledger=request.prompt,
            created_s=now_s,
            last_used_s=now_s,
            family=sequence_id,
        )

    def _take_sequence_id(self) -> SequenceId:
        self._next_sequence += 1
        return SequenceId(self._next_sequence)

    def _evicted(
        self,
        sequence: Sequence,
        reason: EvictionReason,
        *,
        entry: EntryId | None = None,
        lane: LaneId | None = None,
    ) -> Evicted:
        return Evicted(
            sequence_id=sequence.sequence_id,
            entry=entry,
            lane=lane,
            reason=reason,
            tenant=sequence.tenant,
            tokens=sequence.reusable_tokens,
            held_bytes=self._cost.held_bytes(sequence),
        )

    @staticmethod
    def _sequence_of(lane: Lane) -> Sequence:
        if lane.sequence is None:
            raise InvariantBroken(f"lane {lane.lane_id} is empty", lane=lane.lane_id)
        return lane.sequence


def _is_exchange(displacement: Displacement | None) -> bool:
    return displacement is not None and displacement.fate is Fate.EXCHANGE


def _entries_written(plan: AdmissionPlan) -> tuple[EntryId, ...]:
    entries = {plan.fork_to, plan.displacement.entry if plan.displacement else None}
    return tuple(sorted(entry for entry in entries if entry is not None))
