"""Lanes, sessions with their kept states, pools and totals at one moment, for API and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.labels import EvictionReason, LaneState, ReusePath, StateKind
from kvreg_service.engine.interface.profile import EffectiveProfile


@dataclass(frozen=True)
class LaneView:
    """One lane, and the session of its last request while that is kept.

    ``tokens`` and ``pages`` are those of the running request; 0 at rest.
    """

    lane_id: int
    state: LaneState
    request_id: str | None = None
    session_id: int | None = None
    tenant: str | None = None
    tokens: int = 0
    pages: int = 0


@dataclass(frozen=True)
class StateValue:
    """Why a state is worth what it is worth. The lowest ``value`` is freed first.

    ``saved_s`` are the seconds of prefill beyond the nearest kept state before it, ``return_rate``
    the learned returns per admission, and ``rest_admissions`` how many requests were admitted since
    its last use. ``is_followed`` says that its conversation went on beyond it; ``pace`` is the
    class of its session's last rest, 0 for a newcomer.
    """

    value: float
    saved_s: float
    return_rate: float
    rest_admissions: int
    is_followed: bool
    pace: int


@dataclass(frozen=True)
class StateView:
    """One kept state. ``own_bytes`` are its slot and the pages that only it holds.

    ``why`` depends on the traffic of all tenants, and is None in the view of one.
    """

    state_id: int
    kind: StateKind
    position: int
    slot: int
    own_bytes: int
    num_returns: int
    is_marked: bool
    why: StateValue | None


@dataclass(frozen=True)
class SessionView:
    """One session and its kept states, the deepest first.

    ``lane`` is the lane that it was last on, None once it was displaced. A shared session is a head
    or a branch point that no conversation owns. ``expires_in_s`` and ``pinned_for_s`` are None
    without a time to live or a pin.
    """

    session_id: int
    tenant: str
    is_shared: bool
    lane: int | None
    num_running: int
    num_resumes: int
    priority: int
    idle_s: float
    expires_in_s: float | None
    pinned_for_s: float | None
    states: tuple[StateView, ...]


@dataclass(frozen=True)
class ReturnRateView:
    """What was learned of one class of states, by age class.

    ``ages`` are the smallest ages in admissions, ``rested`` the states that rested through each age
    class or were resumed in it, and ``returned`` those that were resumed in it.
    """

    kind: StateKind
    is_followed: bool
    pace: int
    ages: tuple[int, ...]
    rested: tuple[float, ...]
    returned: tuple[float, ...]


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
    """The state slots of the device: those that lanes write, those of kept states, free ones."""

    total: int
    free: int
    working: int
    kept: int


@dataclass(frozen=True)
class RegistrySnapshot:
    """Everything at one moment, taken between two steps.

    The snapshot of one tenant has only its own lanes and sessions; pools and slots count its own,
    ``running`` and ``queued`` are its own requests, and ``return_rates`` are empty.
    """

    profile: EffectiveProfile
    lanes: tuple[LaneView, ...]
    sessions: tuple[SessionView, ...]
    pools: tuple[PoolView, ...]
    state_slots: StateSlotsView
    running: int
    queued: int
    is_draining: bool
    totals: Totals
    return_rates: tuple[ReturnRateView, ...] = ()
