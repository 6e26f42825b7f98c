"""Gauges of the state of an engine at a scrape: lanes, entries, pages, slots and readiness.

Owns the gauges and their names. It keeps no state between scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from kvreg_service.core.labels import EntryState, LaneState
from kvreg_service.engine.interface.profile import EffectiveProfile
from kvreg_service.engine.interface.protocol import EngineProtocol
from kvreg_service.engine.interface.snapshot import PoolView, RegistrySnapshot


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
    kept = EntryState
    entries: Counter[str] = Counter(entry.state for entry in now.entries)
    anchors: Counter[str] = Counter(anchor.state for anchor in now.anchors)
    lanes: Counter[str] = Counter(lane.state for lane in now.lanes)
    yield _states("registry_entries", "Registry entries.", entries, kept)
    yield _gauge("registry_entries_limit", "Number of registry entries (R).", len(now.entries))
    yield _states("anchors", "Anchor places.", anchors, kept)
    yield _gauge("anchors_limit", "Number of anchor places.", len(now.anchors))
    yield _states("lanes", "Lanes.", lanes, LaneState)
    yield _gauge("lanes_limit", "Number of lanes (C).", len(now.lanes))


def _memory(now: RegistrySnapshot) -> Iterator[Metric]:
    yield _pages(now.pools)
    limit = GaugeMetricFamily("kvreg_pages_limit", "Number of KV pages.", labels=("pool",))
    for pool in now.pools:
        limit.add_metric((pool.name,), pool.total)
    yield limit
    slots = now.state_slots
    values = {"free": slots.total - slots.used, "used": slots.used}
    yield _states("state_slots", "State slots.", values, tuple(values))


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


def _states(name: str, text: str, values: Mapping[str, int], states: Iterable[str]) -> Metric:
    family = GaugeMetricFamily(f"kvreg_{name}", text, labels=("state",))
    for state in states:
        family.add_metric((state,), values[state])
    return family
