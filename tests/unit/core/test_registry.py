"""Slot moves of detach, attach, exchange and fork, in keep mode and drop mode."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import InvariantBroken, NotFound
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import EntryId, LaneId, SequenceId
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.registry import Registry
from kvreg_service.core.sequence import Checkpoint, Sequence
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.scheduling.step import SlotCopy, SlotSwap

LANE, ENTRY = LaneId(1), EntryId(1)
# Two lanes, two entries: current 0 1, checkpoint 2 3, then the entries.
LANE_CURRENT, LANE_CHECKPOINT = 1, 3
KEPT_CURRENT, KEPT_CHECKPOINT = 6, 7
DROPPED_CHECKPOINT = 5
TO_LANE_CHECKPOINT = SlotCopy(KEPT_CHECKPOINT, LANE_CHECKPOINT)
TO_LANE_CURRENT = SlotCopy(KEPT_CURRENT, LANE_CURRENT)
RESTORE = SlotCopy(LANE_CHECKPOINT, LANE_CURRENT)


def _sequence(states: str, number: int = 1) -> Sequence:
    """Return a sequence with the given ``states``: c for current, k for checkpoint."""
    return Sequence(
        sequence_id=SequenceId(number),
        ledger=TokenLedger(Identity(b"epoch", "tenant"), range(20)),
        created_s=0.0,
        last_used_s=0.0,
        frontier=20,
        has_current="c" in states,
        checkpoint=Checkpoint(10, CheckpointKind.TURN) if "k" in states else None,
    )


def _registry(*, keep: bool, entry: Sequence | None = None) -> Registry:
    registry = Registry(SlotLayout(2, 2, keep))
    if entry is not None:
        registry.detach(entry, LANE, ENTRY)
    return registry


@pytest.mark.parametrize(
    ("keep", "states", "moves"),
    [
        (True, "ck", [SlotCopy(1, 6), SlotCopy(3, 7)]),
        (True, "c", [SlotCopy(1, 6)]),
        (True, "k", [SlotCopy(3, 7)]),
        (False, "ck", [SlotCopy(3, 5)]),
        (False, "k", [SlotCopy(3, 5)]),
    ],
)
def test_detach_copies_the_existing_states(keep, states, moves):
    assert _registry(keep=keep).detach(_sequence(states), LANE, ENTRY) == moves


@pytest.mark.parametrize(("keep", "has_current"), [(True, True), (False, False)])
def test_detach_drops_current_in_drop_mode_only(keep, has_current):
    sequence = _sequence("ck")
    _registry(keep=keep).detach(sequence, LANE, ENTRY)
    assert sequence.has_current == has_current


def test_detach_to_an_occupied_entry_raises():
    registry = _registry(keep=True, entry=_sequence("ck"))
    with pytest.raises(InvariantBroken):
        registry.detach(_sequence("ck", 2), LANE, ENTRY)


@pytest.mark.parametrize(
    ("keep", "states", "at_checkpoint", "moves"),
    [
        (True, "ck", False, [TO_LANE_CHECKPOINT, TO_LANE_CURRENT]),
        (True, "c", False, [TO_LANE_CURRENT]),
        (True, "ck", True, [TO_LANE_CHECKPOINT, RESTORE]),
        (True, "k", True, [TO_LANE_CHECKPOINT, RESTORE]),
        (False, "ck", True, [SlotCopy(DROPPED_CHECKPOINT, LANE_CHECKPOINT), RESTORE]),
    ],
)
def test_attach_moves_the_checkpoint_and_the_state_to_resume_from(
    keep, states, at_checkpoint, moves
):
    registry = _registry(keep=keep, entry=_sequence(states))
    assert registry.attach(ENTRY, LANE, at_checkpoint=at_checkpoint) == moves
    assert registry.find(ENTRY) is None


@pytest.mark.parametrize(
    ("entry", "lane", "at_checkpoint", "moves"),
    [
        ("ck", "ck", False, [SlotSwap(3, 7), SlotSwap(1, 6)]),
        ("ck", "ck", True, [SlotSwap(3, 7), SlotCopy(1, 6), RESTORE]),
        ("ck", "c", False, [TO_LANE_CHECKPOINT, SlotSwap(1, 6)]),
        ("ck", "c", True, [TO_LANE_CHECKPOINT, SlotCopy(1, 6), RESTORE]),
        ("ck", "k", False, [SlotSwap(3, 7), TO_LANE_CURRENT]),
        ("ck", "k", True, [SlotSwap(3, 7), RESTORE]),
        ("c", "ck", False, [SlotCopy(3, 7), SlotSwap(1, 6)]),
        ("c", "c", False, [SlotSwap(1, 6)]),
        ("c", "k", False, [SlotCopy(3, 7), TO_LANE_CURRENT]),
        ("k", "ck", True, [SlotSwap(3, 7), SlotCopy(1, 6), RESTORE]),
        ("k", "c", True, [TO_LANE_CHECKPOINT, SlotCopy(1, 6), RESTORE]),
        ("k", "k", True, [SlotSwap(3, 7), RESTORE]),
    ],
)
def test_exchange_moves_every_state_once_when_current_is_kept(entry, lane, at_checkpoint, moves):
    registry = _registry(keep=True, entry=_sequence(entry))
    displaced = _sequence(lane, 2)
    assert registry.exchange(ENTRY, LANE, displaced, at_checkpoint=at_checkpoint) == moves
    assert registry.find(ENTRY) is displaced


def test_exchange_swaps_checkpoints_and_restores_when_current_is_dropped():
    registry = _registry(keep=False, entry=_sequence("ck"))
    displaced = _sequence("ck", 2)
    moves = registry.exchange(ENTRY, LANE, displaced, at_checkpoint=True)
    assert moves == [SlotSwap(3, 5), RESTORE]
    assert not displaced.has_current


@pytest.mark.parametrize(
    ("keep", "states", "can_keep"),
    [
        (True, "ck", True),
        (True, "c", True),
        (True, "k", True),
        (False, "ck", True),
        (False, "k", True),
        (False, "c", False),
    ],
)
def test_a_sequence_can_be_kept_only_if_it_is_resumable_from_an_entry(keep, states, can_keep):
    assert _registry(keep=keep).can_keep(_sequence(states)) == can_keep


@pytest.mark.parametrize(
    ("keep", "moves"), [(True, [SlotCopy(1, 6), SlotCopy(3, 7)]), (False, [SlotCopy(3, 5)])]
)
def test_a_fork_of_a_lane_makes_the_same_copies_as_detach(keep, moves):
    registry = _registry(keep=keep)
    assert registry.fork(_sequence("ck"), ENTRY, from_lane=LANE, from_entry=None) == moves


@pytest.mark.parametrize(
    ("keep", "states", "moves"),
    [
        (True, "ck", [SlotCopy(6, 4), SlotCopy(7, 5)]),
        (True, "k", [SlotCopy(7, 5)]),
        (False, "k", [SlotCopy(5, 4)]),
    ],
)
def test_a_fork_of_an_entry_is_copied_to_another_entry(keep, states, moves):
    registry = _registry(keep=keep, entry=_sequence(states))
    copy = _sequence(states, 2)
    assert registry.fork(copy, EntryId(0), from_lane=None, from_entry=ENTRY) == moves


def test_a_fork_in_place_needs_no_moves():
    registry = _registry(keep=True, entry=_sequence("ck"))
    registry.attach(ENTRY, LANE, at_checkpoint=True)
    copy = _sequence("ck", 2)
    assert registry.fork(copy, ENTRY, from_lane=None, from_entry=ENTRY) == []
    assert registry.get(ENTRY) is copy


@pytest.mark.parametrize("entry", [-1, 0, 2])
def test_an_empty_or_unknown_entry_is_not_found(entry):
    registry = _registry(keep=True, entry=_sequence("ck"))
    with pytest.raises(NotFound):
        registry.remove(EntryId(entry))


def test_the_registry_lists_occupied_and_empty_entries():
    sequence = _sequence("ck")
    registry = _registry(keep=True, entry=sequence)
    assert list(registry) == [(ENTRY, sequence)]
    assert registry.empty_entries() == [EntryId(0)]
    assert registry.num_kept == 1
