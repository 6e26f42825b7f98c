"""Plans admissions: the lane of a request, what it resumes, what it captures, what is freed. Pure.

The result is one immutable `AdmissionPlan`, which `LaneStarter` applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvreg_service.core.ids import LaneId
from kvreg_service.core.labels import Attach, EvictionReason, ReusePath, StateKind
from kvreg_service.core.requests.request import Request, ResumePoint
from kvreg_service.core.scheduling.eviction import Eviction
from kvreg_service.core.scheduling.lane import Lane
from kvreg_service.core.scheduling.reservations import Reservations
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.return_rates import Visits
from kvreg_service.core.states.store import StateStore

MIN_BRANCH_TOKENS = 32
"""How far a branch point must lie from the nearest state or other point before it."""

_PATHS = {
    StateKind.FRONTIER: ReusePath.APPEND_FRONTIER,
    StateKind.TURN: ReusePath.RESTORE_TURN_CHECKPOINT,
    StateKind.ROUND: ReusePath.RESTORE_TURN_CHECKPOINT,
    StateKind.RESPONSE: ReusePath.RESTORE_RESPONSE_CHECKPOINT,
    StateKind.HEAD: ReusePath.RESTORE_ANCHOR,
    StateKind.BRANCH_POINT: ReusePath.RESTORE_BRANCH_POINT,
}


@dataclass(frozen=True)
class AdmissionPlan:
    """Everything that admitting one request changes.

    ``freed`` are freed in their order. If the resumed state is the last of them, the request takes
    over its slot instead of a copy.
    """

    request: Request
    lane: LaneId
    resumed: KeptState | None
    freed: tuple[tuple[KeptState, EvictionReason], ...]
    points: tuple[ResumePoint, ...]
    diverged_at: int | None
    missed: Visits | None
    """The deepest freed state that the prompt could have resumed, if deeper than the resumed."""
    is_on_lane: bool
    """Whether the resumed state belongs to the last session of the lane."""
    regret_tokens: int

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that are not computed."""
        return self.resumed.position if self.resumed else 0

    @property
    def reuse_path(self) -> ReusePath:
        """Where the computation starts."""
        return _PATHS[self.resumed.kind] if self.resumed else ReusePath.FULL_RESET

    @property
    def attach(self) -> Attach:
        """Where the resumed state comes from."""
        if self.resumed is None or self.is_on_lane:
            return Attach.NONE
        return Attach.ANCHOR if self.resumed.session.is_shared else Attach.REGISTRY


class AdmissionPlanner:
    """Plans admissions from the kept states at one moment."""

    def __init__(
        self,
        store: StateStore,
        lanes: Sequence[Lane],
        eviction: Eviction,
        reservations: Reservations,
        *,
        prefix_reuse: bool,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._eviction = eviction
        self._reservations = reservations
        self._prefix_reuse = prefix_reuse

    def plan(self, request: Request, now_s: float) -> AdmissionPlan | None:
        """Return the plan for a request, or None while every lane is busy."""
        idle = [lane for lane in self._lanes if not lane.is_busy]
        if not idle:
            return None
        may_reuse = self._prefix_reuse and request.cache_policy.may_reuse
        resumed = self._store.find(request.prompt) if may_reuse else None
        session = resumed.session if resumed and not resumed.session.is_shared else None
        lane = self._choose_lane(idle, session)
        position = resumed.position if resumed else 0
        known = self._store.longest_known(
            request.prompt, [one.run.ledger for one in self._lanes if one.run]
        )
        points = tuple(self._points(request, resumed, session, known))
        missed = self._store.rates.find_freed(request.prompt, position) if may_reuse else None
        return AdmissionPlan(
            request=request,
            lane=lane.lane_id,
            resumed=resumed,
            freed=tuple(self._freed(request, lane, resumed, session, points, now_s)),
            points=points,
            diverged_at=None if resumed else known,
            missed=missed,
            is_on_lane=session is not None and session is lane.session,
            regret_tokens=(
                missed.prefix.position - position if missed and missed.is_dropped_current else 0
            ),
        )

    def _choose_lane(self, idle: list[Lane], session: Session | None) -> Lane:
        """Return the lane of the session, else one without a session, else the least recent."""

        def order(lane: Lane) -> tuple[bool, int, LaneId]:
            is_own = session is not None and lane.session is session
            answered = lane.session.answered if lane.session and lane.session.states else -1
            return not is_own, answered, lane.lane_id

        return min(idle, key=order)

    # What is freed.

    def _freed(
        self,
        request: Request,
        lane: Lane,
        resumed: KeptState | None,
        session: Session | None,
        points: Sequence[ResumePoint],
        now_s: float,
    ) -> list[tuple[KeptState, EvictionReason]]:
        freed = [
            (state, EvictionReason.DISPLACED)
            for state in self._lost_with_lane(lane, session, now_s)
            if state is not resumed
        ]
        if session is not None and self._eviction.policy.keeps_only_r_sessions:
            freed += [
                (state, EvictionReason.SUPERSEDED)
                for state in session.states
                if state.kind is StateKind.FRONTIER and session.num_running == 0
            ]
        is_taken_over = any(state is resumed for state, _ in freed)
        num_free = self._store.slots.num_free + len(freed) - is_taken_over
        if num_free < 1 and not is_taken_over:
            gone = [state for state, _ in freed]
            goes_on = any(point.kind.is_boundary for point in points)
            passed = self._passed(request, resumed) if goes_on else []
            victim = self._eviction.choose_for_slot(
                request, session, now_s, but=gone, passed=passed
            )
            if victim is not None:
                freed.append((victim, EvictionReason.SLOT_NEEDED))
        return sorted(freed, key=lambda one: one[0] is resumed)

    def _passed(self, request: Request, resumed: KeptState | None) -> list[KeptState]:
        """Return the states that a conversation goes on beyond, or beside."""
        if resumed is None:
            return []
        path = [resumed, *self._store.path_to(resumed.ledger, resumed.position)]
        on_path = [one for one in path if one.position not in request.boundaries]
        return on_path + beside(resumed)

    def _lost_with_lane(self, lane: Lane, session: Session | None, now_s: float) -> list[KeptState]:
        """Return the states that a session loses because another one gets its lane."""
        displaced = lane.session
        if displaced is None or displaced is session:
            return []
        if any(other.session is displaced for other in self._lanes if other is not lane):
            return []
        if not self._store.layout.entries:
            return list(displaced.states)
        if self._eviction.policy.keeps_only_r_sessions:
            others = [one for one in self._reservations.displaced() if one is not displaced]
            if len(others) >= self._store.layout.entries:
                return [
                    one for one in displaced.states if not self._eviction.is_protected(one, now_s)
                ]
        if self._store.layout.keep_current:
            return []
        return [state for state in displaced.states if state.kind is StateKind.FRONTIER]

    # What is captured.

    def _points(
        self,
        request: Request,
        resumed: KeptState | None,
        session: Session | None,
        known: int | None,
    ) -> list[ResumePoint]:
        """Return where states may be captured, the first one first.

        Without anchors nothing is captured that only other conversations would resume.
        """
        if not request.cache_policy.retain or not self._prefix_reuse:
            return []
        start = resumed.position if resumed else 0
        inside: dict[int, ResumePoint] = {}
        branches = [known] if known is not None else []
        # Of two kinds at one position a boundary counts.
        for point in sorted(request.resume_points, key=lambda one: one.kind.is_boundary):
            if not start < point.position < request.prompt_tokens:
                continue
            if point.kind is StateKind.BRANCH_POINT:
                branches.append(point.position)
            elif point.kind is not StateKind.HEAD or self._store.layout.anchors:
                other = inside.get(point.position)
                is_marked = point.is_marked or (other is not None and other.is_marked)
                inside[point.position] = replace(point, is_marked=is_marked)
        if session is not None or self._store.layout.anchors:
            for position in branches:
                near = (*inside, start)
                is_far = not any(0 <= position - one < MIN_BRANCH_TOKENS for one in near)
                if start < position < request.prompt_tokens and is_far:
                    inside[position] = ResumePoint(position, StateKind.BRANCH_POINT)
        return [inside[one] for one in sorted(inside)]


def beside(resumed: KeptState) -> list[KeptState]:
    """Return the ends of answers that a conversation leaves beside it, as it was told otherwise."""
    return [
        one
        for one in resumed.session.states
        if one.kind is StateKind.FRONTIER and one.parent is resumed and resumed.kind.is_boundary
    ]
