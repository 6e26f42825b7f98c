"""A lane: one of C places that can run a request, and what is on it."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.anchors import Anchor
from kvreg_service.core.errors import InvariantBroken
from kvreg_service.core.ids import EntryId, LaneId, SequenceId
from kvreg_service.core.request import Head, Request
from kvreg_service.core.sequence import Sequence


@dataclass
class Run:
    """A request on its lane, from admission to its terminal event."""

    request: Request
    capture_at: int | None
    promised_pages: int
    heads: tuple[Head, ...] = ()
    """Heads that prefill passes and that may become anchors, in whole pages, shortest first."""
    num_output_tokens: int = 0
    touched_entries: tuple[EntryId, ...] = ()
    """Entries whose states the preparation writes; they are lost if it fails."""
    stand_in: SequenceId | None = None
    """The fork that is kept of the reused sequence. While it is, nothing of this run is kept."""
    capturing: Anchor | None = None
    """The anchor that the running step captures."""

    def next_stop(self, frontier: int) -> int | None:
        """Return the next position after ``frontier`` at which the state is copied."""
        stops = [head.num_tokens for head in self.heads]
        if self.capture_at is not None:
            stops.append(self.capture_at)
        return min((stop for stop in stops if stop > frontier), default=None)

    def head_at(self, position: int) -> Head | None:
        """Return the head that ends at ``position``, if one does."""
        return next((head for head in self.heads if head.num_tokens == position), None)


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

    def require_sequence(self) -> Sequence:
        """Return the sequence here, at rest or not.

        Raises:
            InvariantBroken: the lane is empty.
        """
        if self.sequence is None:
            raise InvariantBroken(f"lane {self.lane_id} is empty", lane=self.lane_id)
        return self.sequence
