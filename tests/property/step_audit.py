"""Invariants of every plan, and of bookkeeping, states and pages after every step."""

from __future__ import annotations

from event_mirror import Mirror

from kvreg_service.core.ids import AnchorId, EntryId, LaneId
from kvreg_service.core.memory.pages import PageState
from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.scheduling.step import StepPlan
from kvreg_service.testing.fake_runner import FakeRunner

Place = tuple[Sequence, LaneId | None, EntryId | None, AnchorId | None]


class StepAudit:
    """Compares the scheduler with the mirror and with the state slots and pages of the runner."""

    def __init__(self, scheduler: Scheduler, runner: FakeRunner, mirror: Mirror) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._mirror = mirror
        self._layout = scheduler.limits.layout

    def check_plan(self, plan: StepPlan) -> None:
        """Check that each request progresses and writes only pages of its own."""
        self._check_progress(plan)
        pages = self._scheduler.holdings.pages
        for work in plan.work:
            for index in range(work.start // 64, (work.end + 63) // 64):
                page = work.pages[index]
                assert pages.references(page) == 1, "a request writes a shared page"
                assert pages.state(page) is PageState.ACTIVE, "a request writes a sealed page"
            request = self._mirror.requests[work.request_id]
            if request.boundary is not None and request.cache_policy.retain:
                assert not work.start < request.boundary < work.end, "a chunk crosses the boundary"

    def _check_progress(self, plan: StepPlan) -> None:
        running = [lane for lane in self._scheduler.holdings.lanes if lane.run is not None]
        if not running:
            assert not self._scheduler.queue_length, "a request waits while all lanes are idle"
            return
        at_work = {work.lane for work in plan.work}
        first_s = min(lane.run.request.arrival_s for lane in running)
        oldest = {lane.lane_id for lane in running if lane.run.request.arrival_s == first_s}
        assert oldest & at_work, "the oldest running request has no work in the plan"
        decoding = {lane.lane_id for lane in running if lane.run.num_output_tokens}
        assert decoding <= at_work, "a decoding request has no work in the plan"
        num_prefill = sum(len(work.token_ids) for work in plan.work if work.lane not in decoding)
        assert num_prefill <= self._scheduler.limits.prefill_chunk_tokens

    def check_bookkeeping(self, now_s: float) -> None:
        """Check each sequence, its place, states and pages against the mirror and the runner."""
        self._scheduler.check_invariants(now_s)
        holdings = self._scheduler.holdings
        places: list[Place] = [
            (lane.sequence, lane.lane_id, None, None) for lane in holdings.lanes if lane.sequence
        ]
        places += [(sequence, None, entry, None) for entry, sequence in holdings.registry]
        places += [(one.sequence, None, None, one.anchor_id) for one in holdings.anchors]
        slots: list[int] = []
        for place in places:
            self._check_sequence(*place)
            slots += self._check_states(*place)
        ids = [place[0].sequence_id for place in places]
        assert sorted(ids) == sorted(self._mirror.sequences)
        assert len(set(slots)) == len(slots), "two sequences own the same state slot"
        self._check_pages([place[0] for place in places])

    def _check_pages(self, sequences: list[Sequence]) -> None:
        """Check that sequences share the same pages as in the mirror."""
        pairs = {
            pair
            for sequence in sequences
            for pair in zip(
                self._mirror.sequences[sequence.sequence_id].pages, sequence.pages, strict=True
            )
        }
        assert len({ours for ours, _ in pairs}) == len({page for _, page in pairs}) == len(pairs)

    def _check_sequence(
        self,
        sequence: Sequence,
        lane: LaneId | None,
        entry: EntryId | None,
        anchor: AnchorId | None,
    ) -> None:
        seen = self._mirror.sequences[sequence.sequence_id]
        checkpoint = sequence.checkpoint
        assert (seen.lane, seen.entry, seen.anchor) == (lane, entry, anchor)
        assert seen.tenant == sequence.tenant
        assert seen.tokens == list(sequence.ledger.tokens)
        assert seen.frontier == sequence.frontier
        assert seen.has_current == sequence.has_current
        assert seen.checkpoint == (checkpoint.position if checkpoint else None)
        assert seen.num_hits == sequence.num_hits
        assert seen.last_used_s == sequence.last_used_s
        assert seen.created_s == sequence.created_s
        assert seen.pinned_until_s == sequence.pinned_until_s
        if seen.request is None:
            assert len(sequence.pages) == (seen.reusable + 63) // 64
            assert (seen.expires_s, seen.priority) == (sequence.expires_s, sequence.priority)
            if seen.tenant in self._mirror.quotas:
                assert seen.is_lent == sequence.is_lent
            return
        pages = self._scheduler.holdings.pages
        for page in sequence.pages[: seen.frontier // 64]:
            assert pages.state(page) is PageState.SEALED, "a full page is not sealed"

    def _check_states(
        self,
        sequence: Sequence,
        lane: LaneId | None,
        entry: EntryId | None,
        anchor: AnchorId | None,
    ) -> list[int]:
        """Check the sequence's states in the runner; return the state slots that it owns."""
        layout, tokens, owned = self._layout, tuple(sequence.ledger.tokens), {}
        if anchor is not None:
            owned[layout.anchor(anchor)] = len(tokens)
            assert not sequence.has_current
        if sequence.has_current:
            slot = layout.entry_current(entry) if lane is None else layout.lane_current(lane)
            owned[slot] = sequence.frontier
        if sequence.checkpoint and anchor is None:
            slot = layout.entry_checkpoint(entry) if lane is None else layout.lane_checkpoint(lane)
            owned[slot] = sequence.checkpoint.position
        for slot, position in owned.items():
            # A state at position 0 is never read: prefill starts from the zero state.
            if position:
                assert self._runner.state(slot) == tokens[:position]
                assert self._runner.holds(sequence.pages, slot)
        return list(owned)
