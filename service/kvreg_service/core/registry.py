"""Owns the R entries: which kept sequence is in which, and how states move in and out.

Detach, attach and exchange move a whole sequence: its state slots are copied, its pages only change
owner. `admission` decides the moves.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvreg_service.core.errors import InvariantBroken, NotFound
from kvreg_service.core.ids import EntryId, LaneId
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.slots import SlotLayout
from kvreg_service.core.step import SlotCopy, SlotSwap, StateMove


class Registry:
    """The R entries, for sequences at rest.

    Every method that moves a sequence returns the state moves that the runner must execute, in
    order. In drop mode a sequence loses its current state when it enters.
    """

    def __init__(self, layout: SlotLayout) -> None:
        self.layout = layout
        self._entries: list[Sequence | None] = [None] * layout.entries

    def __iter__(self) -> Iterator[tuple[EntryId, Sequence]]:
        """Yield the occupied entries in ascending order."""
        for index, sequence in enumerate(self._entries):
            if sequence is not None:
                yield EntryId(index), sequence

    @property
    def num_kept(self) -> int:
        """Occupied entries."""
        return sum(1 for _ in self)

    def find(self, entry: EntryId) -> Sequence | None:
        """Return the sequence in an entry, or None when it is empty."""
        return self._entries[entry]

    def get(self, entry: EntryId) -> Sequence:
        """Return the sequence in an entry.

        Raises:
            NotFound: there is no such entry, or it is empty.
        """
        if not 0 <= entry < self.layout.entries:
            raise NotFound(
                f"entry {entry} does not exist: there are {self.layout.entries} entries",
                entry=entry,
            )
        sequence = self._entries[entry]
        if sequence is None:
            raise NotFound(f"entry {entry} is empty", entry=entry)
        return sequence

    def find_entry(self, sequence: Sequence) -> EntryId | None:
        """Return the entry that holds this very sequence, or None."""
        return next((entry for entry, one in self if one is sequence), None)

    def empty_entries(self) -> list[EntryId]:
        """Return the empty entries in ascending order."""
        return [EntryId(i) for i, sequence in enumerate(self._entries) if sequence is None]

    def can_keep(self, sequence: Sequence) -> bool:
        """Return whether an entry could hold a state from which the sequence can be resumed."""
        return sequence.checkpoint is not None or (
            self.layout.keep_current and sequence.has_current
        )

    def detach(self, sequence: Sequence, lane: LaneId, entry: EntryId) -> list[StateMove]:
        """Put the sequence at rest on ``lane`` into the empty ``entry``."""
        if self._entries[entry] is not None:
            raise InvariantBroken(f"entry {entry} is taken", entry=entry)
        moves: list[StateMove] = []
        if self.layout.keep_current and sequence.has_current:
            moves.append(SlotCopy(self.layout.lane_current(lane), self.layout.entry_current(entry)))
        if sequence.checkpoint:
            moves.append(
                SlotCopy(self.layout.lane_checkpoint(lane), self.layout.entry_checkpoint(entry))
            )
        self._put(sequence, entry)
        return moves

    def attach(self, entry: EntryId, lane: LaneId, *, at_checkpoint: bool) -> list[StateMove]:
        """Bring the entry's sequence to a free ``lane`` and empty the entry.

        Args:
            entry: its present place.
            lane: its new lane; the state there is overwritten.
            at_checkpoint: resume at the checkpoint rather than at the frontier.
        """
        sequence = self.get(entry)
        moves: list[StateMove] = []
        if sequence.checkpoint:
            moves.append(
                SlotCopy(self.layout.entry_checkpoint(entry), self.layout.lane_checkpoint(lane))
            )
        if at_checkpoint:
            moves.append(self.restore(lane))
        else:
            moves.append(SlotCopy(self.layout.entry_current(entry), self.layout.lane_current(lane)))
        self._entries[entry] = None
        return moves

    def exchange(
        self, entry: EntryId, lane: LaneId, displaced: Sequence, *, at_checkpoint: bool
    ) -> list[StateMove]:
        """Attach the entry's sequence and detach the lane's into the same entry, in one move."""
        attached = self.get(entry)
        layout = self.layout
        moves: list[StateMove] = []
        if attached.checkpoint and displaced.checkpoint:
            moves.append(SlotSwap(layout.lane_checkpoint(lane), layout.entry_checkpoint(entry)))
        elif attached.checkpoint:
            moves.append(SlotCopy(layout.entry_checkpoint(entry), layout.lane_checkpoint(lane)))
        elif displaced.checkpoint:
            moves.append(SlotCopy(layout.lane_checkpoint(lane), layout.entry_checkpoint(entry)))
        keeps_displaced_current = layout.keep_current and displaced.has_current
        if at_checkpoint:
            if keeps_displaced_current:
                moves.append(SlotCopy(layout.lane_current(lane), layout.entry_current(entry)))
            moves.append(self.restore(lane))
        elif keeps_displaced_current:
            moves.append(SlotSwap(layout.lane_current(lane), layout.entry_current(entry)))
        else:
            moves.append(SlotCopy(layout.entry_current(entry), layout.lane_current(lane)))
        self._put(displaced, entry)
        return moves

    def restore(self, lane: LaneId) -> StateMove:
        """Return the move that sets a lane's current state back to its checkpoint."""
        return SlotCopy(self.layout.lane_checkpoint(lane), self.layout.lane_current(lane))

    def fork(
        self,
        copy: Sequence,
        entry: EntryId,
        *,
        from_lane: LaneId | None,
        from_entry: EntryId | None,
    ) -> list[StateMove]:
        """Keep ``copy``, a sequence equal to the one at the given place, in the empty ``entry``.

        With ``from_entry`` equal to ``entry`` the states are already there.
        """
        moves: list[StateMove] = []
        if from_entry is not None and from_entry != entry:
            if copy.has_current:
                moves.append(
                    SlotCopy(
                        self.layout.entry_current(from_entry), self.layout.entry_current(entry)
                    )
                )
            if copy.checkpoint:
                moves.append(
                    SlotCopy(
                        self.layout.entry_checkpoint(from_entry),
                        self.layout.entry_checkpoint(entry),
                    )
                )
            self._put(copy, entry)
            return moves
        if from_lane is not None:
            return self.detach(copy, from_lane, entry)
        self._put(copy, entry)
        return moves

    def remove(self, entry: EntryId) -> Sequence:
        """Empty an entry and return its sequence."""
        sequence = self.get(entry)
        self._entries[entry] = None
        return sequence

    def _put(self, sequence: Sequence, entry: EntryId) -> None:
        if not self.layout.keep_current:
            sequence.has_current = False
        self._entries[entry] = sequence
