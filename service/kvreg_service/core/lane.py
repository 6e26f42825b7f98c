"""A lane: one of C places that can run a request, and what is on it."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.ids import EntryId, LaneId, SequenceId
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import Sequence


@dataclass
class Run:
    """A request on its lane, from admission to its terminal event."""

    request: Request
    cached_tokens: int
    capture_at: int | None
    promised_pages: int
    num_output_tokens: int = 0
    touched_entries: tuple[EntryId, ...] = ()
    """Entries whose states the preparation writes; they are lost with it when it fails."""
    stand_in: SequenceId | None = None
    """The fork that stays of a borrowed sequence. While it does, nothing of this run is kept."""


@dataclass
class Lane:
    """Empty (no sequence), at rest (a sequence, no run) or busy (both)."""

    lane_id: LaneId
    sequence: Sequence | None = None
    run: Run | None = None

    @property
    def is_busy(self) -> bool:
        """True while a request runs here."""
        return self.run is not None

    @property
    def kept(self) -> Sequence | None:
        """The sequence at rest here, if any."""
        return self.sequence if self.run is None else None


def hits_by_id(lanes: list[Lane], kept: list[Sequence]) -> dict[SequenceId, int]:
    """Return how often every sequence on a lane or among ``kept`` was resumed."""
    on_lanes = [lane.sequence for lane in lanes if lane.sequence is not None]
    return {sequence.sequence_id: sequence.num_hits for sequence in on_lanes + kept}
