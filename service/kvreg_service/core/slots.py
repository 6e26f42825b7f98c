"""The numbering of state slots, and nothing else.

Lane slots are ``[0, 2C)`` and entry slots start at ``2C``. The two ranges never overlap, and that
alone guarantees that a busy lane cannot overwrite an entry. Anchors follow, one slot each.

| range     | keep current                                          | drop current         |
|-----------|-------------------------------------------------------|----------------------|
| [0, C)    | lane i: current, read and written at every step       | the same             |
| [C, 2C)   | lane i: checkpoint, the snapshot at the turn boundary | the same             |
| from 2C   | entry e: current 2C + 2e, checkpoint 2C + 2e + 1      | checkpoint 2C + e    |
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.errors import ConfigurationError, CurrentSlotDropped, InvariantBroken
from kvreg_service.core.ids import AnchorId, EntryId, LaneId, SlotId


@dataclass(frozen=True)
class SlotLayout:
    """The static map from lanes and entries to state slots.

    Raises:
        ConfigurationError: fewer than one lane, fewer than zero entries or anchors, or current
            dropped without an entry that could drop it.
    """

    lanes: int
    entries: int
    keep_current: bool = True
    anchors: int = 0

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ConfigurationError(f"lanes is {self.lanes}, and must be at least 1")
        if self.entries < 0:
            raise ConfigurationError(f"entries is {self.entries}, and must be at least 0")
        if self.anchors < 0:
            raise ConfigurationError(f"anchors is {self.anchors}, and must be at least 0")
        if not self.keep_current and self.entries == 0:
            raise ConfigurationError(
                "current_state is drop and entries is 0: there is no entry whose current state "
                "could be dropped; set entries to at least 1 or current_state to keep"
            )

    @property
    def slots_per_entry(self) -> int:
        """Two states an entry in keep mode, one in drop mode."""
        return 2 if self.keep_current else 1

    @property
    def num_slots(self) -> int:
        """All slots of lanes, entries and anchors together."""
        return self._first_anchor + self.anchors

    @property
    def _first_anchor(self) -> int:
        return 2 * self.lanes + self.slots_per_entry * self.entries

    def lane_current(self, lane: LaneId) -> SlotId:
        """Return the slot of the lane's frontier state."""
        self._check_lane(lane)
        return SlotId(lane)

    def lane_checkpoint(self, lane: LaneId) -> SlotId:
        """Return the slot of the lane's turn-boundary snapshot."""
        self._check_lane(lane)
        return SlotId(self.lanes + lane)

    def entry_current(self, entry: EntryId) -> SlotId:
        """Return the slot of the entry's frontier state.

        Raises:
            CurrentSlotDropped: in drop mode there is none.
        """
        self._check_entry(entry)
        if not self.keep_current:
            raise CurrentSlotDropped(
                f"entry {entry} has no current slot: this profile drops it", entry=entry
            )
        return SlotId(2 * self.lanes + 2 * entry)

    def entry_checkpoint(self, entry: EntryId) -> SlotId:
        """Return the slot of the entry's turn-boundary snapshot."""
        self._check_entry(entry)
        if self.keep_current:
            return SlotId(2 * self.lanes + 2 * entry + 1)
        return SlotId(2 * self.lanes + entry)

    def anchor(self, anchor: AnchorId) -> SlotId:
        """Return the slot of an anchor's state."""
        if not 0 <= anchor < self.anchors:
            raise InvariantBroken(
                f"anchor {anchor} does not exist: there are {self.anchors}", anchor=anchor
            )
        return SlotId(self._first_anchor + anchor)

    def _check_lane(self, lane: LaneId) -> None:
        if not 0 <= lane < self.lanes:
            raise InvariantBroken(f"lane {lane} does not exist: there are {self.lanes}", lane=lane)

    def _check_entry(self, entry: EntryId) -> None:
        if not 0 <= entry < self.entries:
            raise InvariantBroken(
                f"entry {entry} does not exist: there are {self.entries}", entry=entry
            )
