"""Captures anchors from heads that prefill computes: reserves a place, then fills it.

A step is planned before it runs, so a place is reserved with the plan and filled with the result.
If a head is worth no place, or its step fails, nothing is kept.
"""

from __future__ import annotations

from kvreg_service.core.anchors import Anchor
from kvreg_service.core.events import AnchorCaptured
from kvreg_service.core.holdings import Holdings
from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.labels import CheckpointKind, EvictionReason
from kvreg_service.core.lane import Run
from kvreg_service.core.sequence import Checkpoint, Sequence


class AnchorCapture:
    """Captures anchors into one `Holdings`."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def reserve(self, run: Run, sequence: Sequence, end: int, now_s: float) -> Anchor | None:
        """Return the anchor to capture at ``end``, if a head ends there and is worth a place.

        Effects: sets ``run.capturing`` to the result, and evicts the anchor that had the place.
        """
        run.capturing = None
        head = run.head_at(end)
        others = self._reserved()
        if head is None or self._is_kept_or_reserved(run, end, others):
            return None
        holdings, prompt = self._holdings, run.request.prompt
        newcomer = Sequence(
            sequence_id=holdings.take_sequence_id(),
            ledger=prompt.copy(end),
            created_s=now_s,
            last_used_s=now_s,
            frontier=end,
            has_current=False,
            checkpoint=Checkpoint(end, CheckpointKind.ANCHOR),
            pages=sequence.pages[: end // PAGE_TOKENS],
        )
        place = holdings.anchors.choose_place(
            newcomer,
            is_wanted=head.is_marked or holdings.anchors.times_seen(prompt, end) > 1,
            order=holdings.order(now_s),
            quota=holdings.quotas.get(newcomer.tenant),
            reserved=others,
        )
        if place is None:
            return None
        loser = holdings.anchors.find(place)
        if loser is not None:
            holdings.remove_anchor(loser, EvictionReason.ANCHOR_NEEDED)
        run.capturing = Anchor(place, newcomer, head.is_marked)
        return run.capturing

    def keep(self, run: Run, sequence: Sequence) -> None:
        """Keep the anchor that the step captured of ``sequence``, if it captured one."""
        anchor, run.capturing = run.capturing, None
        if anchor is None:
            return
        sequence.anchored_by = anchor.sequence.sequence_id
        sequence.anchored_tokens = len(anchor.sequence.ledger)
        self._holdings.pages.share(anchor.sequence.pages, is_kept=True)
        self._holdings.anchors.put(anchor)
        self._holdings.events.append(
            AnchorCaptured(
                request_id=run.request.request_id,
                sequence_id=anchor.sequence.sequence_id,
                anchor=anchor.anchor_id,
                position=len(anchor.sequence.ledger),
                is_marked=anchor.is_marked,
            )
        )

    def _reserved(self) -> list[Anchor]:
        return [
            lane.run.capturing
            for lane in self._holdings.lanes
            if lane.run is not None and lane.run.capturing is not None
        ]

    def _is_kept_or_reserved(self, run: Run, end: int, reserved: list[Anchor]) -> bool:
        prompt = run.request.prompt
        return self._holdings.anchors.find_head(prompt, end) is not None or any(
            len(one.sequence.ledger) == end and prompt.starts_with(one.sequence.ledger, end)
            for one in reserved
        )
