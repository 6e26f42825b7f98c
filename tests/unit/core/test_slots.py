"""The numbering of state slots of lanes and entries."""

from __future__ import annotations

import itertools

import pytest

from kvreg_service.core.errors import ConfigurationError, CurrentSlotDropped, InvariantBroken
from kvreg_service.core.ids import EntryId, LaneId
from kvreg_service.core.memory.slots import SlotLayout

PROFILES = [
    (lanes, entries, keep)
    for lanes, entries, keep in itertools.product((1, 2, 5), (0, 1, 2, 4, 8), (True, False))
    if keep or entries
]


def _lane_slots(layout: SlotLayout) -> list[int]:
    lanes = [LaneId(lane) for lane in range(layout.lanes)]
    return [layout.lane_current(i) for i in lanes] + [layout.lane_checkpoint(i) for i in lanes]


def _entry_slots(layout: SlotLayout) -> list[int]:
    entries = [EntryId(entry) for entry in range(layout.entries)]
    checkpoints = [layout.entry_checkpoint(entry) for entry in entries]
    if not layout.keep_current:
        return checkpoints
    return [layout.entry_current(entry) for entry in entries] + checkpoints


@pytest.mark.parametrize("keep", [True, False])
def test_lane_slots_are_numbered_current_first(keep):
    layout = SlotLayout(3, 2, keep)
    assert [layout.lane_current(LaneId(i)) for i in range(3)] == [0, 1, 2]
    assert [layout.lane_checkpoint(LaneId(i)) for i in range(3)] == [3, 4, 5]


def test_entries_alternate_current_and_checkpoint_in_keep_mode():
    layout = SlotLayout(2, 3)
    assert [layout.entry_current(EntryId(e)) for e in range(3)] == [4, 6, 8]
    assert [layout.entry_checkpoint(EntryId(e)) for e in range(3)] == [5, 7, 9]


def test_entries_have_checkpoints_only_in_drop_mode():
    layout = SlotLayout(2, 3, keep_current=False)
    assert [layout.entry_checkpoint(EntryId(e)) for e in range(3)] == [4, 5, 6]


@pytest.mark.parametrize("entry", [0, 1, 2])
def test_the_current_slot_of_an_entry_in_drop_mode_raises(entry):
    with pytest.raises(CurrentSlotDropped):
        SlotLayout(2, 3, keep_current=False).entry_current(EntryId(entry))


@pytest.mark.parametrize(("lanes", "entries", "keep"), PROFILES)
def test_lanes_and_entries_never_share_a_slot(lanes, entries, keep):
    layout = SlotLayout(lanes, entries, keep)
    assert sorted(_lane_slots(layout)) == list(range(2 * lanes))
    assert sorted(_entry_slots(layout)) == list(range(2 * lanes, layout.num_slots))


@pytest.mark.parametrize(("entries", "num_slots"), [(0, 2), (1, 4), (2, 6), (3, 8), (4, 10)])
def test_one_lane_needs_two_slots_and_two_for_each_entry(entries, num_slots):
    assert SlotLayout(1, entries).num_slots == num_slots


@pytest.mark.parametrize("entries", [1, 2, 7])
def test_drop_mode_saves_one_slot_per_entry(entries):
    kept, dropped = SlotLayout(1, entries), SlotLayout(1, entries, keep_current=False)
    assert kept.num_slots - dropped.num_slots == entries


@pytest.mark.parametrize(("lanes", "entries", "keep"), [(0, 1, True), (1, -1, True), (1, 0, False)])
def test_an_inconsistent_layout_is_refused(lanes, entries, keep):
    with pytest.raises(ConfigurationError):
        SlotLayout(lanes, entries, keep)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_lane_or_entry_that_does_not_exist_has_no_slot(index):
    layout = SlotLayout(2, 2)
    for slot_of in (layout.lane_current, layout.lane_checkpoint):
        with pytest.raises(InvariantBroken):
            slot_of(LaneId(index))
    for slot_of in (layout.entry_current, layout.entry_checkpoint):
        with pytest.raises(InvariantBroken):
            slot_of(EntryId(index))
