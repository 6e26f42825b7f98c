"""State slots: their number in a profile, and their owners."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import ConfigurationError, InvariantBroken
from kvreg_service.core.ids import LaneId, StateId
from kvreg_service.core.memory.slots import LaneOwner, SlotLayout, SlotPool, StateOwner

LANE, OTHER_LANE = LaneOwner(LaneId(0)), LaneOwner(LaneId(1))
STATE = StateOwner(StateId(7))


# The number of slots.


@pytest.mark.parametrize(("entries", "num_slots"), [(0, 2), (1, 4), (2, 6), (3, 8), (4, 10)])
def test_one_lane_needs_two_slots_and_two_for_each_entry(entries, num_slots):
    assert SlotLayout(1, entries).num_slots == num_slots


@pytest.mark.parametrize("entries", [1, 2, 7])
def test_drop_mode_saves_one_slot_for_each_entry(entries):
    kept, dropped = SlotLayout(1, entries), SlotLayout(1, entries, keep_current=False)
    assert kept.num_slots - dropped.num_slots == entries


@pytest.mark.parametrize("anchors", [0, 1, 5])
def test_each_anchor_adds_one_slot(anchors):
    assert SlotLayout(3, 2, anchors=anchors).num_slots == 10 + anchors


@pytest.mark.parametrize(
    "arguments", [(0, 1, True), (1, -1, True), (1, 0, False), (1, 1, True, -1)]
)
def test_an_inconsistent_layout_is_refused(arguments):
    with pytest.raises(ConfigurationError):
        SlotLayout(*arguments)


# Their owners.


def test_a_slot_belongs_to_whoever_took_it():
    pool = SlotPool(2)
    slot = pool.take(LANE)
    assert (pool.owner(slot), pool.num_free) == (LANE, 1)


def test_low_slots_are_taken_first():
    pool = SlotPool(3)
    assert [pool.take(LANE) for _ in range(3)] == [0, 1, 2]


def test_a_freed_slot_has_no_owner_and_can_be_taken_again():
    pool = SlotPool(1)
    slot = pool.take(LANE)
    pool.free(slot)
    assert (pool.owner(slot), pool.num_free) == (None, 1)
    assert pool.take(STATE) == slot


def test_a_slot_is_handed_over_without_being_free_in_between():
    pool = SlotPool(1)
    slot = pool.take(LANE)
    pool.hand_over(slot, STATE)
    assert (pool.owner(slot), pool.num_free) == (STATE, 0)


@pytest.mark.parametrize("num_taken", [1, 2])
def test_without_a_free_slot_none_is_taken(num_taken):
    pool = SlotPool(num_taken)
    for _ in range(num_taken):
        pool.take(LANE)
    with pytest.raises(InvariantBroken):
        pool.take(OTHER_LANE)
    pool.check_invariants(dict.fromkeys(range(num_taken), LANE))


def test_a_free_slot_is_neither_freed_nor_handed_over():
    pool = SlotPool(2)
    pool.take(LANE)
    for change in (lambda: pool.free(1), lambda: pool.hand_over(1, STATE)):
        with pytest.raises(InvariantBroken):
            change()
    pool.check_invariants({0: LANE})


def test_reassigning_frees_every_slot_that_is_not_named():
    pool = SlotPool(3)
    for _ in range(3):
        pool.take(LANE)
    pool.reassign({1: STATE})
    assert [pool.owner(slot) for slot in range(3)] == [None, STATE, None]
    assert [pool.take(LANE), pool.take(LANE)] == [0, 2]


@pytest.mark.parametrize(
    "owners",
    [{}, {0: STATE}, {0: LANE, 1: STATE}, {1: LANE}],
    ids=["none", "other", "more", "slot"],
)
def test_other_owners_than_expected_break_an_invariant(owners):
    pool = SlotPool(2)
    pool.take(LANE)
    pool.check_invariants({0: LANE})
    with pytest.raises(InvariantBroken):
        pool.check_invariants(owners)
