"""The registry's state moves, executed on slots that record the owner of their state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvreg_service.core.errors import CurrentSlotDropped, InvariantBroken, NotFound
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import EntryId, LaneId, SequenceId
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.registry import Registry
from kvreg_service.core.sequence import Checkpoint, Sequence
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.scheduling.step import SlotCopy, SlotSwap, StateMove

CURRENT, CHECKPOINT = "current", "checkpoint"


class RegistryMachine(RuleBasedStateMachine):
    """Moves sequences with a current state, a checkpoint or both between lanes and entries."""

    @initialize(lanes=st.integers(1, 3), entries=st.integers(1, 4), keep=st.booleans())
    def start(self, lanes, entries, keep):
        self.layout = SlotLayout(lanes, entries, keep)
        self.registry = Registry(self.layout)
        self.slots: list[object] = [None] * self.layout.num_slots
        self.on_lane: dict[LaneId, Sequence] = {}
        self.origin: dict[SequenceId, SequenceId] = {}
        """The sequence whose states a sequence holds: a fork holds those of its origin."""
        self.num_sequences = 0

    def execute(self, moves: list[StateMove]) -> None:
        for move in moves:
            match move:
                case SlotCopy(src, dst):
                    self.slots[dst] = self.slots[src]
                case SlotSwap(first, second):
                    self.slots[first], self.slots[second] = self.slots[second], self.slots[first]
                case _:
                    raise AssertionError("the registry moves no pages")

    def new_id(self) -> SequenceId:
        self.num_sequences += 1
        return SequenceId(self.num_sequences)

    def lane(self, index: int) -> LaneId:
        return LaneId(index % self.layout.lanes)

    def entry(self, index: int) -> EntryId:
        return EntryId(index % self.layout.entries)

    def can_attach(self, entry: EntryId, at_checkpoint: bool) -> bool:
        sequence = self.registry.find(entry)
        if sequence is None:
            return False
        return sequence.checkpoint is not None if at_checkpoint else sequence.has_current

    @rule(index=st.integers(0, 2), states=st.sampled_from(["both", CURRENT, CHECKPOINT]))
    def start_new_sequence(self, index, states):
        lane = self.lane(index)
        sequence = Sequence(
            sequence_id=self.new_id(),
            ledger=TokenLedger(Identity(b"epoch", "tenant"), range(20)),
            created_s=0.0,
            last_used_s=0.0,
            frontier=20,
            has_current=states != CHECKPOINT,
            checkpoint=None if states == CURRENT else Checkpoint(10, CheckpointKind.TURN),
        )
        self.origin[sequence.sequence_id] = sequence.sequence_id
        self.on_lane[lane] = sequence
        # A slot without a valid state must never be read.
        self.slots[self.layout.lane_current(lane)] = (sequence.sequence_id, CURRENT)
        self.slots[self.layout.lane_checkpoint(lane)] = (sequence.sequence_id, CHECKPOINT)
        if not sequence.has_current:
            self.slots[self.layout.lane_current(lane)] = "spoiled"
        if sequence.checkpoint is None:
            self.slots[self.layout.lane_checkpoint(lane)] = "spoiled"

    @rule(index=st.integers(0, 2), entry_index=st.integers(0, 3))
    def detach(self, index, entry_index):
        lane, entry = self.lane(index), self.entry(entry_index)
        sequence = self.on_lane.get(lane)
        if sequence is None or not self.registry.can_keep(sequence):
            return
        if self.registry.find(entry) is not None:
            with pytest.raises(InvariantBroken):
                self.registry.detach(sequence, lane, entry)
            return
        self.execute(self.registry.detach(sequence, lane, entry))
        del self.on_lane[lane]

    @rule(index=st.integers(0, 2), entry_index=st.integers(0, 3), at_checkpoint=st.booleans())
    def attach(self, index, entry_index, at_checkpoint):
        lane, entry = self.lane(index), self.entry(entry_index)
        if lane in self.on_lane or not self.can_attach(entry, at_checkpoint):
            return
        sequence = self.registry.get(entry)
        self.execute(self.registry.attach(entry, lane, at_checkpoint=at_checkpoint))
        assert self.registry.find(entry) is None
        self._check_attached(sequence, lane, at_checkpoint)

    @rule(index=st.integers(0, 2), entry_index=st.integers(0, 3), at_checkpoint=st.booleans())
    def exchange(self, index, entry_index, at_checkpoint):
        lane, entry = self.lane(index), self.entry(entry_index)
        displaced = self.on_lane.get(lane)
        if displaced is None or not self.registry.can_keep(displaced):
            return
        if not self.can_attach(entry, at_checkpoint):
            return
        sequence = self.registry.get(entry)
        moves = self.registry.exchange(entry, lane, displaced, at_checkpoint=at_checkpoint)
        self.execute(moves)
        assert self.registry.find(entry) is displaced
        self._check_attached(sequence, lane, at_checkpoint)

    def _check_attached(self, sequence: Sequence, lane: LaneId, at_checkpoint: bool) -> None:
        """Check that the lane's current slot holds the attached state."""
        owner = self.origin[sequence.sequence_id]
        expected = (owner, CHECKPOINT if at_checkpoint else CURRENT)
        assert self.slots[self.layout.lane_current(lane)] == expected
        sequence.has_current = not at_checkpoint
        self.on_lane[lane] = sequence

    @rule(index=st.integers(0, 2))
    def restore(self, index):
        lane = self.lane(index)
        sequence = self.on_lane.get(lane)
        if sequence is not None and sequence.checkpoint is not None:
            self.execute([self.registry.restore(lane)])
            owner = self.origin[sequence.sequence_id]
            assert self.slots[self.layout.lane_current(lane)] == (owner, CHECKPOINT)
            sequence.has_current = False

    @rule(source=st.integers(0, 3), entry_index=st.integers(0, 3), on_lane=st.booleans())
    def fork(self, source, entry_index, on_lane):
        entry = self.entry(entry_index)
        lane, from_entry = self.lane(source), self.entry(source)
        sequence = self.on_lane.get(lane) if on_lane else self.registry.find(from_entry)
        if sequence is None or self.registry.find(entry) is not None:
            return
        if not self.registry.can_keep(sequence):
            return
        copy = replace(
            sequence,
            sequence_id=self.new_id(),
            has_current=sequence.has_current and self.layout.keep_current,
        )
        self.origin[copy.sequence_id] = self.origin[sequence.sequence_id]
        moves = self.registry.fork(
            copy,
            entry,
            from_lane=lane if on_lane else None,
            from_entry=None if on_lane else from_entry,
        )
        self.execute(moves)

    @rule(entry_index=st.integers(0, 3), index=st.integers(0, 2), at_checkpoint=st.booleans())
    def attach_and_leave_a_fork_in_place(self, entry_index, index, at_checkpoint):
        lane, entry = self.lane(index), self.entry(entry_index)
        if lane in self.on_lane or not self.can_attach(entry, at_checkpoint):
            return
        sequence = self.registry.get(entry)
        copy = replace(sequence, sequence_id=self.new_id())
        self.origin[copy.sequence_id] = self.origin[sequence.sequence_id]
        self.execute(self.registry.attach(entry, lane, at_checkpoint=at_checkpoint))
        moves = self.registry.fork(copy, entry, from_lane=None, from_entry=entry)
        assert not moves, "the entry holds the states already"
        self._check_attached(sequence, lane, at_checkpoint)

    @rule(entry_index=st.integers(0, 5))
    def remove(self, entry_index):
        entry = EntryId(entry_index)
        if entry_index >= self.layout.entries or self.registry.find(entry) is None:
            with pytest.raises(NotFound):
                self.registry.remove(entry)
            return
        sequence = self.registry.get(entry)
        assert self.registry.remove(entry) is sequence
        assert self.registry.find(entry) is None

    @rule(index=st.integers(0, 2))
    def finish(self, index):
        self.on_lane.pop(self.lane(index), None)

    @invariant()
    def slots_hold_the_states_of_their_sequence(self):
        for lane, sequence in self.on_lane.items():
            self._check(sequence, self.layout.lane_current(lane), self.layout.lane_checkpoint(lane))
        for entry, sequence in self.registry:
            if self.layout.keep_current:
                current = self.layout.entry_current(entry)
            else:
                assert not sequence.has_current
                with pytest.raises(CurrentSlotDropped):
                    self.layout.entry_current(entry)
                current = None
            self._check(sequence, current, self.layout.entry_checkpoint(entry))

    def _check(self, sequence: Sequence, current, checkpoint) -> None:
        owner = self.origin[sequence.sequence_id]
        if sequence.has_current:
            assert self.slots[current] == (owner, CURRENT)
        if sequence.checkpoint is not None:
            assert self.slots[checkpoint] == (owner, CHECKPOINT)

    @invariant()
    def every_entry_is_kept_or_empty(self):
        kept = dict(self.registry)
        assert self.registry.num_kept == len(kept)
        empty = self.registry.empty_entries()
        assert sorted([*kept, *empty]) == list(range(self.layout.entries))


def test_slots_hold_the_states_of_their_sequence_after_any_moves():
    run_state_machine_as_test(RegistryMachine, settings=settings(stateful_step_count=50))
