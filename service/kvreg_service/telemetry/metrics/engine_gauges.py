"""Gauges of the state of an engine at a scrape: lanes, sessions, states, pages and readiness.

Owns the gauges and their names. It keeps no state between scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from kvreg_service.core.labels import LaneState, StateKind
from kvreg_service.engine.interface.profile import EffectiveProfile
from kvreg_service.engine.interface.protocol import EngineProtocol
from kvreg_service.engine.interface.snapshot import PoolView, RegistrySnapshot, SessionView

_PLACES = ("lane", "registry", "shared")


class EngineGauges(Collector):
    """Takes one snapshot per scrape, so that all gauges are consistent."""

    def __init__(self, engine: EngineProtocol, *, start_time_s: float) -> None:
        self._engine = engine
        self._start_time_s = start_time_s

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration does not take a snapshot."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges."""
        now = self._engine.snapshot()
        yield from _places(now)
        yield from _memory(now)
        yield _gauge("queued_requests", "Accepted requests without a lane.", now.queued)
        yield _gauge("running_requests", "Requests on a lane.", now.running)
        yield _profile(now.profile)
        yield _gauge(
            "engine_start_time_seconds",
            "Unix time at which the engine was ready.",
            self._start_time_s,
        )
        yield _gauge(
            "engine_ready", "1 while the engine accepts new requests.", int(self._engine.is_ready)
        )
        yield _gauge("engine_draining", "1 once the engine drains.", int(now.is_draining))


def _places(now: RegistrySnapshot) -> Iterator[Metric]:
    sessions = Counter(_place(one) for one in now.sessions if one.states)
    states: Counter[str] = Counter(state.kind for one in now.sessions for state in one.states)
    lanes: Counter[str] = Counter(lane.state for lane in now.lanes)
    yield _by_label("kept_sessions", "Sessions with kept states.", "place", sessions, _PLACES)
    yield _by_label("kept_states", "Kept states.", "kind", states, StateKind)
    yield _gauge(
        "registry_entries_limit",
        "Displaced sessions that are surely kept (R).",
        now.profile.entries,
    )
    yield _gauge("anchors_limit", "State slots added for shared heads.", now.profile.anchors)
    yield _by_label("lanes", "Lanes.", "state", lanes, LaneState)
    yield _gauge("lanes_limit", "Number of lanes (C).", len(now.lanes))


def _place(session: SessionView) -> str:
    if session.is_shared:
        return "shared"
    return "registry" if session.lane is None else "lane"


def _memory(now: RegistrySnapshot) -> Iterator[Metric]:
    yield _pages(now.pools)
    limit = GaugeMetricFamily("kvreg_pages_limit", "Number of KV pages.", labels=("pool",))
    for pool in now.pools:
        limit.add_metric((pool.name,), pool.total)
    yield limit
    slots = now.state_slots
    values = {"free": slots.free, "working": slots.working, "kept": slots.kept}
    yield _by_label("state_slots", "State slots.", "state", values, values)


def _pages(pools: Iterable[PoolView]) -> Metric:
    family = GaugeMetricFamily("kvreg_pages", "KV pages.", labels=("pool", "state"))
    for pool in pools:
        family.add_metric((pool.name, "free"), pool.free)
        family.add_metric((pool.name, "referenced"), pool.referenced)
    return family


def _profile(profile: EffectiveProfile) -> Metric:
    return InfoMetricFamily(
        "kvreg_profile",
        "The effective profile.",
        value={
            "profile": profile.profile or "",
            "profile_hash": profile.profile_hash,
            "lanes": str(profile.lanes),
            "entries": str(profile.entries),
            "current_state": profile.current_state,
        },
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kvreg_{name}", text, value=value)


def _by_label(
    name: str, text: str, label: str, values: Mapping[str, int], names: Iterable[str]
) -> Metric:
    family = GaugeMetricFamily(f"kvreg_{name}", text, labels=(label,))
    for one in names:
        family.add_metric((one,), values.get(one, 0))
    return family
