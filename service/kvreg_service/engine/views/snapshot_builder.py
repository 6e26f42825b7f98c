"""Builds the frozen views of lanes, entries and pools that the API shows.

Owns what a tenant may see: its own places, pages, slots and requests, and nothing that depends on
other tenants.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.ids import AnchorId, EntryId
from kvreg_service.core.labels import EntryState, LaneState
from kvreg_service.core.scheduling.lane import Lane
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.value import CostModel
from kvreg_service.engine.interface.profile import EffectiveProfile
from kvreg_service.engine.interface.snapshot import (
    AnchorView,
    EntryView,
    LaneView,
    PoolView,
    RegistrySnapshot,
    StateSlotsView,
    Totals,
)
from kvreg_service.engine.views.tenant_ids import TenantIds


@dataclass(frozen=True)
class SnapshotBuilder:
    """Reads a scheduler between two steps. Time: linear in lanes and entries."""

    scheduler: Scheduler
    profile: EffectiveProfile
    policy: EvictionPolicy
    cost: CostModel
    ids: TenantIds

    def build(
        self, now_s: float, *, is_draining: bool, totals: Totals, tenant: str | None = None
    ) -> RegistrySnapshot:
        """Return the present state, or the part of it that belongs to ``tenant``."""
        scheduler = self.scheduler
        return RegistrySnapshot(
            profile=self.profile,
            lanes=self._lanes(now_s, tenant),
            entries=self._entries(now_s, tenant),
            anchors=self._anchor_views(now_s, tenant),
            pools=(self._pool(tenant),),
            state_slots=self._slots(tenant),
            running=sum(one.is_busy and _is_of(one.sequence, tenant) for one in self._all_lanes()),
            queued=scheduler.count_queued(tenant),
            is_draining=is_draining,
            totals=totals,
        )

    def _all_lanes(self) -> list[Lane]:
        return self.scheduler.holdings.lanes

    def _lanes(self, now_s: float, tenant: str | None) -> tuple[LaneView, ...]:
        return tuple(
            self._lane_view(lane, now_s, tenant)
            for lane in self._all_lanes()
            if _is_of(lane.sequence, tenant)
        )

    def _lane_view(self, lane: Lane, now_s: float, tenant: str | None) -> LaneView:
        sequence = lane.sequence
        if sequence is None:
            return LaneView(lane.lane_id, LaneState.EMPTY)
        state = LaneState.RETAINED
        if lane.run is not None:
            state = LaneState.DECODE if lane.run.num_output_tokens else LaneState.PREFILL
        return LaneView(
            lane_id=lane.lane_id,
            state=state,
            request_id=lane.run.request.request_id if lane.run else None,
            sequence_id=self.ids.shown(sequence.sequence_id, tenant),
            tokens=len(sequence.ledger),
            checkpoint_position=_checkpoint_of(sequence),
            frontier=sequence.frontier if sequence.has_current else None,
            pages=len(sequence.pages),
            age_s=max(0.0, now_s - sequence.last_used_s),
            tenant=sequence.tenant,
            priority=sequence.priority,
            expires_in_s=_time_left(sequence.expires_s, now_s),
            pinned_for_s=_time_left(sequence.pinned_until_s, now_s),
        )

    def _entries(self, now_s: float, tenant: str | None) -> tuple[EntryView, ...]:
        registry = self.scheduler.holdings.registry
        views = []
        for index in range(registry.layout.entries):
            sequence = registry.find(EntryId(index))
            if not _is_of(sequence, tenant):
                continue
            if sequence is None:
                views.append(EntryView(index, EntryState.EMPTY))
            else:
                views.append(self._entry_view(index, sequence, now_s, tenant))
        return tuple(views)

    def _entry_view(
        self, index: int, sequence: Sequence, now_s: float, tenant: str | None
    ) -> EntryView:
        return EntryView(
            entry_id=index,
            state=EntryState.KEPT,
            sequence_id=self.ids.shown(sequence.sequence_id, tenant),
            tokens=sequence.reusable_tokens,
            checkpoint_position=_checkpoint_of(sequence),
            frontier=sequence.frontier if sequence.has_current else None,
            pages=len(sequence.pages),
            bytes=self.cost.held_bytes(sequence),
            value=self.policy.value(sequence, now_s),
            idle_s=max(0.0, now_s - sequence.last_used_s),
            num_hits=sequence.num_hits,
            tenant=sequence.tenant,
            priority=sequence.priority,
            expires_in_s=_time_left(sequence.expires_s, now_s),
            pinned_for_s=_time_left(sequence.pinned_until_s, now_s),
        )

    def _anchor_views(self, now_s: float, tenant: str | None) -> tuple[AnchorView, ...]:
        anchors = self.scheduler.holdings.anchors
        views = []
        for index in range(anchors.num_places):
            anchor = anchors.find(AnchorId(index))
            sequence = anchor.sequence if anchor is not None else None
            if not _is_of(sequence, tenant):
                continue
            if anchor is None or sequence is None:
                views.append(AnchorView(index, EntryState.EMPTY))
                continue
            views.append(
                AnchorView(
                    anchor_id=index,
                    state=EntryState.KEPT,
                    sequence_id=self.ids.shown(sequence.sequence_id, tenant),
                    tokens=sequence.reusable_tokens,
                    pages=len(sequence.pages),
                    bytes=self.cost.held_bytes(sequence),
                    value=self.policy.value(sequence, now_s),
                    idle_s=max(0.0, now_s - sequence.last_used_s),
                    num_hits=sequence.num_hits,
                    tenant=sequence.tenant,
                    is_marked=anchor.is_marked,
                    pinned_for_s=_time_left(sequence.pinned_until_s, now_s),
                )
            )
        return tuple(views)

    def _pool(self, tenant: str | None) -> PoolView:
        holdings = self.scheduler.holdings
        total, referenced = holdings.pages.num_pages, holdings.pages.num_pages
        referenced -= holdings.pages.num_free
        if tenant is not None:
            quota = holdings.quotas.get(tenant)
            total = total if quota is None else quota.pages
            own = [one for one in holdings.sequences() if one.tenant == tenant]
            referenced = len({page for one in own for page in one.pages})
            total = max(total, referenced)
        return PoolView(name="kv", total=total, free=total - referenced, referenced=referenced)

    def _slots(self, tenant: str | None) -> StateSlotsView:
        sequences = self.scheduler.holdings.sequences()
        return StateSlotsView(
            total=self.scheduler.limits.layout.num_slots,
            used=sum(one.num_states for one in sequences if _is_of(one, tenant)),
        )


def _is_of(sequence: Sequence | None, tenant: str | None) -> bool:
    return tenant is None or (sequence is not None and sequence.tenant == tenant)


def _checkpoint_of(sequence: Sequence) -> int | None:
    return sequence.checkpoint.position if sequence.checkpoint else None


def _time_left(until_s: float | None, now_s: float) -> float | None:
    return max(0.0, until_s - now_s) if until_s is not None else None
