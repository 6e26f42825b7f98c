"""Builds the frozen views of lanes, sessions and pools that the API shows.

Owns what a tenant may see: its own lanes, sessions, pages, slots and requests, and nothing that
depends on other tenants.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.labels import LaneState
from kvreg_service.core.scheduling.lane import Lane, Run
from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.return_rates import AGE_EDGES
from kvreg_service.engine.interface.profile import EffectiveProfile
from kvreg_service.engine.interface.snapshot import (
    LaneView,
    PoolView,
    RegistrySnapshot,
    ReturnRateView,
    SessionView,
    StateSlotsView,
    StateValue,
    StateView,
    Totals,
)
from kvreg_service.engine.views.tenant_ids import TenantIds


@dataclass(frozen=True)
class SnapshotBuilder:
    """Reads a scheduler between two steps. Time: linear in lanes and kept states."""

    scheduler: Scheduler
    profile: EffectiveProfile
    ids: TenantIds

    def build(
        self, now_s: float, *, is_draining: bool, totals: Totals, tenant: str | None = None
    ) -> RegistrySnapshot:
        """Return the present state, or the part of it that belongs to ``tenant``."""
        scheduler = self.scheduler
        runs = [lane.run for lane in scheduler.lanes if lane.run is not None]
        return RegistrySnapshot(
            profile=self.profile,
            lanes=tuple(
                self._lane(lane, tenant)
                for lane in scheduler.lanes
                if tenant is None or (lane.session and lane.session.tenant == tenant)
            ),
            sessions=tuple(
                self._session(session, now_s, tenant)
                for session in scheduler.store.sessions
                if tenant in (None, session.tenant)
            ),
            pools=(self._pool(tenant),),
            state_slots=self._slots(tenant),
            running=sum(tenant in (None, run.request.tenant) for run in runs),
            queued=scheduler.count_queued(tenant),
            is_draining=is_draining,
            totals=totals,
            return_rates=self._return_rates() if tenant is None else (),
        )

    def _lane(self, lane: Lane, tenant: str | None) -> LaneView:
        session, run = lane.session, lane.run
        if run is None and (session is None or not session.states):
            return LaneView(lane.lane_id, LaneState.EMPTY)
        state = LaneState.RETAINED
        if run is not None:
            state = LaneState.DECODE if run.num_output_tokens else LaneState.PREFILL
        return LaneView(
            lane_id=lane.lane_id,
            state=state,
            request_id=run.request.request_id if run else None,
            session_id=self.ids.shown(session.session_id, tenant) if session else None,
            tenant=session.tenant if session else None,
            tokens=len(run.ledger) if run else 0,
            pages=len(run.pages) if run else 0,
        )

    def _session(self, session: Session, now_s: float, tenant: str | None) -> SessionView:
        lanes = [lane.lane_id for lane in self.scheduler.lanes if lane.session is session]
        return SessionView(
            session_id=self.ids.shown(session.session_id, tenant),
            tenant=session.tenant,
            is_shared=session.is_shared,
            lane=lanes[0] if lanes else None,
            num_running=session.num_running,
            num_resumes=session.num_resumes,
            priority=session.priority,
            idle_s=max(0.0, now_s - session.last_used_s),
            expires_in_s=_time_left(session.expires_s, now_s),
            pinned_for_s=_time_left(session.pinned_until_s, now_s),
            states=tuple(
                self._state(state, tenant)
                for state in sorted(session.states, key=lambda one: -one.position)
            ),
        )

    def _state(self, state: KeptState, tenant: str | None) -> StateView:
        return StateView(
            state_id=self.ids.shown(state.state_id, tenant),
            kind=state.kind,
            position=state.position,
            slot=state.slot,
            own_bytes=self.scheduler.store.own_bytes(state),
            num_returns=state.visits.num_returns,
            is_marked=state.is_marked,
            why=self._why(state) if tenant is None else None,
        )

    def _why(self, state: KeptState) -> StateValue:
        prospect = self.scheduler.eviction.prospect_of(state)
        return StateValue(
            value=self.scheduler.eviction.policy.value(prospect),
            saved_s=prospect.saved_s,
            return_rate=prospect.return_rate,
            rest_admissions=prospect.rest,
            is_followed=state.visits.is_followed,
            pace=state.visits.pace,
        )

    def _return_rates(self) -> tuple[ReturnRateView, ...]:
        return tuple(
            ReturnRateView(
                kind=one.kind,
                is_followed=one.is_followed,
                pace=one.pace,
                ages=AGE_EDGES[:-1],
                rested=tuple(table.rested),
                returned=tuple(table.returned),
            )
            for one, table in self.scheduler.store.rates.tables()
        )

    def _pool(self, tenant: str | None) -> PoolView:
        pages = self.scheduler.store.pages
        total, referenced = pages.num_pages, pages.num_pages - pages.num_free
        if tenant is not None:
            quota = self.scheduler.eviction.quotas.get(tenant)
            total = total if quota is None else quota.pages
            tables = [one.pages for one in self.scheduler.store if one.tenant == tenant]
            tables += [tuple(run.pages) for run in self._runs_of(tenant)]
            referenced = len({page for table in tables for page in table})
            total = max(total, referenced)
        return PoolView(name="kv", total=total, free=total - referenced, referenced=referenced)

    def _slots(self, tenant: str | None) -> StateSlotsView:
        store = self.scheduler.store
        working = sum(len(run.slots) for run in self._runs_of(tenant))
        kept = sum(tenant in (None, state.tenant) for state in store)
        total = store.slots.num_slots
        # What others hold is none of a tenant's business: all but its own counts as free.
        return StateSlotsView(total, total - working - kept, working, kept)

    def _runs_of(self, tenant: str | None) -> list[Run]:
        runs = [lane.run for lane in self.scheduler.lanes if lane.run is not None]
        return [run for run in runs if tenant in (None, run.request.tenant)]


def _time_left(until_s: float | None, now_s: float) -> float | None:
    return max(0.0, until_s - now_s) if until_s is not None else None
