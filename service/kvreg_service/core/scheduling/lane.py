"""A lane: one of C places that can run a request, and the request that runs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvreg_service.core.ids import LaneId, PageId, SlotId
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Request, ResumePoint
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.return_rates import Visits
from kvreg_service.core.states.store import StateStore


@dataclass(eq=False)
class Run:
    """A request on its lane, from admission to its terminal event.

    ``slot`` is the working slot, which has the state after ``num_computed`` tokens of ``ledger``;
    None once that state is kept. The ledger may have one more token, the last sampled one.
    """

    request: Request
    session: Session
    slot: SlotId | None
    ledger: TokenLedger
    num_computed: int
    promised_pages: int
    pages: list[PageId] = field(default_factory=list)
    """The page table: page i holds tokens [64 i, 64 i + 64)."""
    points: list[ResumePoint] = field(default_factory=list)
    """Where states may still be captured, the next one first."""
    capturing: tuple[ResumePoint, SlotId] | None = None
    """The point that the running step captures, and the slot that was taken for it."""
    boundary: KeptState | None = None
    """The state that the next request of this conversation is expected to resume."""
    visits: list[Visits] = field(default_factory=list)
    """The states that it resumed and captured; their rest begins with its end."""
    num_output_tokens: int = 0

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """All slots that the lane owns."""
        captured = self.capturing[1] if self.capturing else None
        return tuple(slot for slot in (self.slot, captured) if slot is not None)


@dataclass(eq=False)
class Lane:
    """``session`` is the last one that a request of this lane continued, while it is kept."""

    lane_id: LaneId
    session: Session | None = None
    run: Run | None = None

    @property
    def is_busy(self) -> bool:
        """True while a request runs here."""
        return self.run is not None


def working_slots(lanes: Sequence[Lane]) -> dict[SlotId, LaneId]:
    """Return the slots that running requests own, with their lanes."""
    return {slot: lane.lane_id for lane in lanes if lane.run for slot in lane.run.slots}


def running_tables(lanes: Sequence[Lane]) -> list[list[PageId]]:
    """Return the page tables of running requests."""
    return [lane.run.pages for lane in lanes if lane.run]


def rebuild(store: StateStore, lanes: Sequence[Lane]) -> None:
    """Make a store and its lanes consistent after a change that failed half-way."""
    running = [lane.run.session for lane in lanes if lane.run]
    for session in store.sessions:
        session.num_running = running.count(session)
    store.rebuild(working_slots(lanes), running_tables(lanes))
    for lane in lanes:
        if lane.session is not None and not lane.run and not lane.session.states:
            lane.session = None
