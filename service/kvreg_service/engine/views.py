"""Builds the frozen views of lanes, entries and pools that the API shows."""

from __future__ import annotations

from kvreg_service.core.lane import Lane
from kvreg_service.core.placement import Placement
from kvreg_service.core.scheduler import Scheduler
from kvreg_service.core.value import CostModel, EvictionPolicy
from kvreg_service.engine.interface import (
    EffectiveProfile,
    EntryView,
    LaneState,
    LaneView,
    PoolView,
    RegistrySnapshot,
    StateSlotsView,
)


def build_snapshot(
    scheduler: Scheduler,
    profile: EffectiveProfile,
    policy: EvictionPolicy,
    cost: CostModel,
    now_s: float,
    *,
    is_draining: bool,
) -> RegistrySnapshot:
    """Return everything as it is between two steps. Time: linear in lanes and entries."""
    placement = scheduler.placement
    return RegistrySnapshot(
        profile=profile,
        lanes=tuple(_lane_view(lane, now_s) for lane in placement.lanes),
        entries=_entry_views(placement, policy, cost, now_s),
        pools=(
            PoolView(
                name="kv",
                total=placement.pages.num_pages,
                free=placement.pages.num_free,
                referenced=placement.pages.num_pages - placement.pages.num_free,
            ),
        ),
        state_slots=StateSlotsView(
            total=scheduler.limits.layout.num_slots, used=_used_slots(placement)
        ),
        running=scheduler.num_running,
        queued=scheduler.queue_length,
        is_draining=is_draining,
    )


def _lane_view(lane: Lane, now_s: float) -> LaneView:
    sequence = lane.sequence
    if sequence is None:
        return LaneView(lane.lane_id, "empty")
    state: LaneState = "retained"
    if lane.run is not None:
        state = "decode" if lane.run.num_output_tokens else "prefill"
    return LaneView(
        lane_id=lane.lane_id,
        state=state,
        request_id=lane.run.request.request_id if lane.run else None,
        sequence_id=sequence.sequence_id,
        tokens=len(sequence.ledger),
        checkpoint_position=sequence.checkpoint.position if sequence.checkpoint else None,
        frontier=sequence.frontier if sequence.has_current else None,
        pages=len(sequence.pages),
        age_s=max(0.0, now_s - sequence.last_used_s),
    )


def _entry_views(
    placement: Placement, policy: EvictionPolicy, cost: CostModel, now_s: float
) -> tuple[EntryView, ...]:
    kept = dict(placement.registry)
    views = []
    for entry in range(placement.registry.layout.entries):
        sequence = kept.get(entry)  # type: ignore[call-overload]
        if sequence is None:
            views.append(EntryView(entry, "empty"))
            continue
        views.append(
            EntryView(
                entry_id=entry,
                state="kept",
                sequence_id=sequence.sequence_id,
                tokens=sequence.reusable_tokens,
                checkpoint_position=(sequence.checkpoint.position if sequence.checkpoint else None),
                frontier=sequence.frontier if sequence.has_current else None,
                pages=len(sequence.pages),
                bytes=cost.held_bytes(sequence),
                value=policy.value(sequence, now_s),
                idle_s=max(0.0, now_s - sequence.last_used_s),
                num_hits=sequence.num_hits,
            )
        )
    return tuple(views)


def _used_slots(placement: Placement) -> int:
    return sum(one.num_states for one in [*placement.running(), *placement.kept()])
