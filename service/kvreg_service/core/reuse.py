"""Finds the kept sequence that a prompt continues, and the position. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvreg_service.core.holdings import Holdings
from kvreg_service.core.ids import AnchorId, EntryId, LaneId
from kvreg_service.core.labels import CheckpointKind, ReusePath
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import Sequence


@dataclass(frozen=True)
class Resume:
    """The kept sequence that a prompt continues, and from where.

    ``lane``, ``entry`` or ``anchor`` says where it is; exactly one is set.
    """

    sequence: Sequence
    position: int
    path: ReusePath
    lane: LaneId | None = None
    entry: EntryId | None = None
    anchor: AnchorId | None = None

    @property
    def at_checkpoint(self) -> bool:
        """True when the state comes from the checkpoint rather than from the frontier."""
        return self.path is not ReusePath.APPEND_FRONTIER


class ReuseFinder:
    """Matches prompts against the holdings at one moment."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def find(self, request: Request) -> Resume | None:
        """Return the longest reuse; ties go to append, lane, entry, anchor, then last used."""
        candidates = sorted(
            self._candidates(request),
            key=lambda c: (
                -c.position,
                c.at_checkpoint,
                c.lane is None,
                c.entry is None,
                -c.sequence.last_used_s,
            ),
        )
        for candidate in candidates:
            if request.prompt.starts_with(candidate.sequence.ledger, candidate.position):
                return candidate
        return None

    def _candidates(self, request: Request) -> Iterator[Resume]:
        for place in self._places():
            sequence = place.sequence
            positions = []
            if sequence.has_current:
                positions.append((sequence.frontier, ReusePath.APPEND_FRONTIER))
            if sequence.checkpoint:
                positions.append((sequence.checkpoint.position, _restore_path(sequence)))
            for position, path in positions:
                # One token must be left to compute, or there are no logits to sample from.
                if 0 < position < request.prompt_tokens and request.prompt.may_start_with(
                    sequence.ledger, position
                ):
                    yield replace(place, position=position, path=path)

    def _places(self) -> Iterator[Resume]:
        """Yield every kept sequence and its place; positions and paths are not filled in."""
        for lane in self._holdings.lanes:
            if lane.kept is not None:
                yield Resume(lane.kept, 0, ReusePath.FULL_RESET, lane=lane.lane_id)
        for entry, sequence in self._holdings.registry:
            yield Resume(sequence, 0, ReusePath.FULL_RESET, entry=entry)
        for anchor in self._holdings.anchors:
            yield Resume(anchor.sequence, 0, ReusePath.FULL_RESET, anchor=anchor.anchor_id)

    def diverged_at(self, request: Request) -> int | None:
        """Return the longest prefix that any kept sequence of the same tenant shares with a prompt.

        None when nothing is kept for it.
        """
        longest: int | None = None
        for place in self._places():
            ledger = place.sequence.ledger
            if ledger.identity != request.prompt.identity:
                continue
            if longest is None or request.prompt.agrees_up_to(ledger, longest + 1):
                longest = request.prompt.common_prefix(ledger)
        return longest

    @staticmethod
    def regret_tokens(request: Request, resume: Resume) -> int:
        """Return the tokens that are computed again only because a current state was dropped."""
        sequence = resume.sequence
        would_append = (
            resume.anchor is None
            and not sequence.has_current
            and sequence.frontier < request.prompt_tokens
            and request.prompt.starts_with(sequence.ledger, sequence.frontier)
        )
        return sequence.frontier - resume.position if would_append else 0


def _restore_path(sequence: Sequence) -> ReusePath:
    match sequence.checkpoint.kind if sequence.checkpoint else CheckpointKind.TURN:
        case CheckpointKind.TURN:
            return ReusePath.RESTORE_TURN_CHECKPOINT
        case CheckpointKind.RESPONSE:
            return ReusePath.RESTORE_RESPONSE_CHECKPOINT
        case CheckpointKind.ANCHOR:
            return ReusePath.RESTORE_ANCHOR
