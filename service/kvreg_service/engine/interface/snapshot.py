"""Lanes, entries, anchors, pools and totals at one moment, as the API and the metrics show them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.labels import EntryState, EvictionReason, LaneState, ReusePath
from kvreg_service.engine.interface.profile import EffectiveProfile


@dataclass(frozen=True)
class LaneView:
    """One lane.

    ``tokens`` and ``pages`` are those of its sequence; ``age_s`` counts from its last use.
    ``expires_in_s`` and ``pinned_for_s`` are None without a time to live or a pin.
    """

    lane_id: int
    state: LaneState
    request_id: str | None = None
    sequence_id: int | None = None
    tokens: int = 0
    checkpoint_position: int | None = None
    frontier: int | None = None
    pages: int = 0
    age_s: float = 0.0
    tenant: str | None = None
    priority: int = 0
    expires_in_s: float | None = None
    pinned_for_s: float | None = None


@dataclass(frozen=True)
class EntryView:
    """One registry entry.

    ``frontier`` is None if the entry holds no frontier state, as in a profile that drops it.
    ``value`` is the score that eviction compares; the lowest is evicted first.
    """

    entry_id: int
    state: EntryState
    sequence_id: int | None = None
    tokens: int = 0
    checkpoint_position: int | None = None
    frontier: int | None = None
    pages: int = 0
    bytes: int = 0
    value: float = 0.0
    idle_s: float = 0.0
    num_hits: int = 0
    tenant: str | None = None
    priority: int = 0
    expires_in_s: float | None = None
    pinned_for_s: float | None = None


@dataclass(frozen=True)
class AnchorView:
    """One anchor place.

    ``tokens`` is the length of the shared head; ``is_marked`` says that a client marked it.
    """

    anchor_id: int
    state: EntryState
    sequence_id: int | None = None
    tokens: int = 0
    pages: int = 0
    bytes: int = 0
    value: float = 0.0
    idle_s: float = 0.0
    num_hits: int = 0
    tenant: str | None = None
    is_marked: bool = False
    pinned_for_s: float | None = None


@dataclass(frozen=True)
class Totals:
    """Counts since the start of the engine.

    A request counts when it ends: under one of ``finished``, ``failed`` and ``cancelled``, and in
    ``requests_by_path``, or in ``never_started`` if it ended in the queue. ``cached_tokens`` and
    ``computed_tokens`` partition the prompts of ``requests_by_path``.
    """

    requests_by_path: dict[ReusePath, int]
    never_started: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    evictions_by_reason: dict[EvictionReason, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolView:
    """The pages of one pool. ``free`` and ``referenced`` add up to ``total``."""

    name: str
    total: int
    free: int
    referenced: int


@dataclass(frozen=True)
class StateSlotsView:
    """The state slots of the device, and how many of them are used."""

    total: int
    used: int


@dataclass(frozen=True)
class RegistrySnapshot:
    """Everything at one moment, taken between two steps.

    The snapshot of one tenant has only its own places; pools and slots count its own, and
    ``running`` and ``queued`` are its own requests.
    """

    profile: EffectiveProfile
    lanes: tuple[LaneView, ...]
    entries: tuple[EntryView, ...]
    anchors: tuple[AnchorView, ...]
    pools: tuple[PoolView, ...]
    state_slots: StateSlotsView
    running: int
    queued: int
    is_draining: bool
    totals: Totals
