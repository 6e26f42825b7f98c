"""State slots: how many there are, and who owns each.

A slot has one owner: the lane that runs a request in it, a kept state, or nobody. A step writes
only slots that its own lane owns, and a kept state gets its slot from a lane that never writes it
again. So a running lane cannot touch a kept state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvreg_service.core.errors import ConfigurationError, InvariantBroken
from kvreg_service.core.ids import LaneId, SlotId, StateId


@dataclass(frozen=True)
class SlotLayout:
    """The number of state slots of a profile: ``2C + R x (2 keep | 1 drop) + A``.

    Each lane has one for the state that it computes and one for the boundary of its session, each
    of R displaced sessions has one for its boundary and in keep mode one for its frontier, and A
    are added for shared heads. A kept state may be in any slot; the numbers say how many sessions
    are sure to have theirs.

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
        """All state slots."""
        return 2 * self.lanes + self.slots_per_entry * self.entries + self.anchors


@dataclass(frozen=True)
class LaneOwner:
    """The request that runs on a lane owns the slot."""

    lane: LaneId


@dataclass(frozen=True)
class StateOwner:
    """A kept state owns the slot."""

    state_id: StateId


SlotOwner = LaneOwner | StateOwner


class SlotPool:
    """``num_slots`` state slots and their owners. Their contents belong to the runner."""

    def __init__(self, num_slots: int) -> None:
        self._owners: list[SlotOwner | None] = [None] * num_slots
        # Popped from the end, so that low numbers go first.
        self._free = [SlotId(slot) for slot in reversed(range(num_slots))]

    @property
    def num_slots(self) -> int:
        """All slots."""
        return len(self._owners)

    @property
    def num_free(self) -> int:
        """Slots without an owner."""
        return len(self._free)

    def owner(self, slot: SlotId) -> SlotOwner | None:
        """Return the owner of a slot; None when it is free."""
        return self._owners[slot]

    def take(self, owner: SlotOwner) -> SlotId:
        """Give a free slot to an owner.

        Raises:
            InvariantBroken: none is free; the caller frees one first.
        """
        if not self._free:
            raise InvariantBroken("no state slot is free")
        slot = self._free.pop()
        self._owners[slot] = owner
        return slot

    def hand_over(self, slot: SlotId, owner: SlotOwner) -> None:
        """Give a slot that has an owner to another one, with the state in it."""
        if self._owners[slot] is None:
            raise InvariantBroken(f"slot {slot} is free and cannot be handed over")
        self._owners[slot] = owner

    def free(self, slot: SlotId) -> None:
        """Take a slot from its owner."""
        if self._owners[slot] is None:
            raise InvariantBroken(f"slot {slot} is freed twice")
        self._owners[slot] = None
        self._free.append(slot)

    def reassign(self, owners: Mapping[SlotId, SlotOwner]) -> None:
        """Set all owners; slots that are not named become free."""
        self._owners = [owners.get(SlotId(slot)) for slot in range(len(self._owners))]
        self._free = [
            SlotId(slot) for slot in reversed(range(len(self._owners))) if not self._owners[slot]
        ]

    def check_invariants(self, owners: Mapping[SlotId, SlotOwner]) -> None:
        """Raise InvariantBroken unless exactly these slots have exactly these owners."""
        actual = {SlotId(slot): one for slot, one in enumerate(self._owners) if one is not None}
        if actual != dict(owners):
            raise InvariantBroken(f"slots belong to {actual}, and should to {dict(owners)}")
        if sorted(self._free) != [s for s, one in enumerate(self._owners) if one is None]:
            raise InvariantBroken(f"the free slots are counted as {sorted(self._free)}")
