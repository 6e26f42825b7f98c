"""Checks each admission by brute-force comparison of token lists. Shares no code with admission.

Input: the mirrored state before the admission, and its plan. Uses no digests.
"""

from __future__ import annotations

from event_mirror import Mirror
from ranking import Profile, Ranking
from seen import SeenFreed, SeenRun, SeenSession, SeenState

from kvreg_service.core.ids import LaneId, SessionId
from kvreg_service.core.labels import Attach, EvictionReason, ReusePath, StateKind
from kvreg_service.core.requests.request import Admission, Request, ResumePoint
from kvreg_service.core.scheduling.admission import AdmissionPlan

PATHS = {
    StateKind.FRONTIER: ReusePath.APPEND_FRONTIER,
    StateKind.TURN: ReusePath.RESTORE_TURN_CHECKPOINT,
    StateKind.ROUND: ReusePath.RESTORE_TURN_CHECKPOINT,
    StateKind.RESPONSE: ReusePath.RESTORE_RESPONSE_CHECKPOINT,
    StateKind.HEAD: ReusePath.RESTORE_ANCHOR,
    StateKind.BRANCH_POINT: ReusePath.RESTORE_BRANCH_POINT,
}
MIN_BRANCH_TOKENS = 32

Freed = list[tuple[SeenState, EvictionReason]]


class AdmissionOracle:
    """Says how a request must be admitted: the state, the lane, what is freed and captured."""

    def __init__(self, mirror: Mirror, profile: Profile, ranking: Ranking) -> None:
        self._mirror = mirror
        self._profile = profile
        self._ranking = ranking

    def check(self, plan: AdmissionPlan, request: Request, now_s: float) -> tuple[SeenRun, Freed]:
        """Check the plan of a request; return its run and what it must free, in order."""
        resumed = self._longest(request)
        session = resumed.session if resumed and not resumed.session.is_shared else None
        position = resumed.position if resumed else 0
        known = self._longest_known(request)
        lane = self._lane(session)
        assert plan.lane == lane, "the request is not on the lane of its session, or a better one"
        assert (plan.resumed.state_id if plan.resumed else None) == (
            resumed.state_id if resumed else None
        ), "not the longest kept prefix is resumed"
        missed = self._missed(request, position)
        points = self._points(request, position, session, known)
        assert list(plan.points) == points
        freed = self._freed(request, lane, resumed, session, points, now_s)
        run = SeenRun(
            request=request,
            session=session or SeenSession(None, request.tenant),
            lane=lane,
            resumed=resumed,
            missed=missed,
            known=known,
            tokens=list(request.prompt.tokens),
            position=position,
            points=points,
            is_taken_over=bool(freed) and freed[-1][0] is resumed,
        )
        goes_on = missed is not None and missed.kind not in (
            StateKind.HEAD,
            StateKind.BRANCH_POINT,
        )
        run.session.is_newcomer = session is None and not goes_on
        if run.is_taken_over:
            # The slot goes on to the request, which needs it, whatever else it was freed for.
            freed[-1] = freed[-1][0], EvictionReason.SLOT_NEEDED
        return run, freed

    def expected_admission(self, run: SeenRun, now_s: float) -> Admission:
        """Return what is reported of an admission; a new session has no id yet.

        The mirror has the state before it.
        """
        request, resumed = run.request, run.resumed
        last = self._mirror.lanes[run.lane]
        attach = Attach.NONE
        if resumed is not None and (resumed.session.is_shared or resumed.session is not last):
            attach = Attach.ANCHOR if resumed.session.is_shared else Attach.REGISTRY
        is_dropped = run.missed is not None and run.missed.is_dropped_current
        return Admission(
            lane=LaneId(run.lane),
            session_id=SessionId(run.session.session_id or 0),
            prompt_tokens=request.prompt_tokens,
            cached_tokens=run.position,
            reuse_path=PATHS[resumed.kind] if resumed else ReusePath.FULL_RESET,
            attach=attach,
            queue_s=max(0.0, now_s - request.arrival_s),
            gap_s=max(0.0, now_s - resumed.last_used_s) if resumed else None,
            diverged_at=None if resumed else run.known,
            regret_tokens=run.missed.position - run.position if run.missed and is_dropped else 0,
        )

    # What is resumed, and where.

    def _longest(self, request: Request) -> SeenState | None:
        if not request.cache_policy.may_reuse:
            return None
        prompt, identity = list(request.prompt.tokens), request.prompt.identity
        path = self._mirror.path_to(identity, prompt, len(prompt))
        return path[0] if path else None

    def _longest_known(self, request: Request) -> int | None:
        """Return the longest prefix that the prompt shares with a known path."""
        prompt, identity = list(request.prompt.tokens), request.prompt.identity
        paths = [
            one.path if isinstance(one, SeenState) else one.tokens
            for one in (*self._mirror.states, *self._mirror.runs)
            if one.identity == identity
        ]
        return max((_common(prompt, path) for path in paths), default=None)

    def _missed(self, request: Request, position: int) -> SeenFreed | None:
        """Return the longest freed state that the prompt could have resumed instead."""
        if not request.cache_policy.may_reuse:
            return None
        prompt, identity = list(request.prompt.tokens), request.prompt.identity
        found = [
            one
            for one in self._mirror.freed
            if one.identity == identity
            and position < one.position < len(prompt)
            and tuple(prompt[: one.position]) == one.tokens
        ]
        return max(found, key=lambda one: one.position, default=None)

    def _lane(self, session: SeenSession | None) -> int:
        """Return the lane of the session, else one without a session, else the least recent."""
        busy = {run.lane for run in self._mirror.runs}
        idle = {
            lane: last if last is not None and last.states else None
            for lane, last in enumerate(self._mirror.lanes)
            if lane not in busy
        }
        own = [lane for lane, last in idle.items() if last is not None and last is session]
        empty = [lane for lane, last in idle.items() if last is None]
        return min(own or empty or idle, key=lambda lane: (_answered(idle[lane]), lane))

    # What is freed.

    def _freed(
        self,
        request: Request,
        lane: int,
        resumed: SeenState | None,
        session: SeenSession | None,
        points: list[ResumePoint],
        now_s: float,
    ) -> Freed:
        displaced = self._lost_with_lane(lane, session, now_s)
        freed = [(one, EvictionReason.DISPLACED) for one in displaced if one is not resumed]
        if self._profile.is_none and session is not None and not session.num_running:
            ends = [one for one in session.states if one.kind is StateKind.FRONTIER]
            freed += [(one, EvictionReason.SUPERSEDED) for one in ends]
        gone = [one for one, _ in freed]
        if resumed not in gone and not self._mirror.num_free_slots + len(gone):
            goes_on = any(one.kind.is_boundary for one in points)
            passed = self._passed(request, resumed) if goes_on else []
            victim = self._ranking.first_for_slot(request, session, now_s, but=gone, passed=passed)
            assert victim is not None, "no slot is left for a request to run in"
            freed.append((victim, EvictionReason.SLOT_NEEDED))
        return [one for one in freed if one[0] is not resumed] + [
            one for one in freed if one[0] is resumed
        ]

    def _passed(self, request: Request, resumed: SeenState | None) -> list[SeenState]:
        """Return the states that the conversation goes on beyond, and ends of other answers."""
        if resumed is None:
            return []
        path = self._mirror.path_to(resumed.identity, list(resumed.tokens), resumed.position)
        expected = request.boundaries
        beside = [
            one
            for one in resumed.session.states
            if one.kind is StateKind.FRONTIER
            and resumed.kind.is_boundary
            and self._mirror.parent(one) is resumed
        ]
        return [one for one in (resumed, *path) if one.position not in expected] + beside

    def _lost_with_lane(
        self, lane: int, session: SeenSession | None, now_s: float
    ) -> list[SeenState]:
        """Return the states that the last session of the lane loses with it."""
        last = self._mirror.lanes[lane]
        if last is None or last is session or self._mirror.lanes.count(last) > 1:
            return []
        if not self._profile.entries:
            return list(last.states)
        others = [one for one in self._mirror.displaced() if one is not last]
        if self._profile.is_none and len(others) >= self._profile.entries:
            return [one for one in last.states if not self._ranking.is_protected(one, now_s)]
        if self._profile.keep_current:
            return []
        return [one for one in last.states if one.kind is StateKind.FRONTIER]

    # What is captured.

    def _points(
        self, request: Request, start: int, session: SeenSession | None, known: int | None
    ) -> list[ResumePoint]:
        """Return where states may be captured, the first one first."""
        if not request.cache_policy.retain:
            return []
        inside = [
            one for one in request.resume_points if start < one.position < len(request.prompt)
        ]
        planned: dict[int, ResumePoint] = {}
        for position in {one.position for one in inside}:
            here = [one for one in inside if one.position == position]
            boundaries = [one for one in here if one.kind.is_boundary]
            heads = [one for one in here if one.kind is StateKind.HEAD and self._profile.anchors]
            if boundaries or heads:
                kind = boundaries[-1].kind if boundaries else StateKind.HEAD
                is_marked = any(one.is_marked for one in (*boundaries, *heads))
                planned[position] = ResumePoint(position, kind, is_marked)
        branches = [one.position for one in inside if one.kind is StateKind.BRANCH_POINT]
        if known is not None and start < known < len(request.prompt):
            branches.insert(0, known)
        if session is not None or self._profile.anchors:
            for position in branches:
                before = [one for one in (start, *planned) if one <= position]
                if position - max(before) >= MIN_BRANCH_TOKENS:
                    planned[position] = ResumePoint(position, StateKind.BRANCH_POINT)
        return [planned[one] for one in sorted(planned)]


def _answered(session: SeenSession | None) -> int:
    return session.answered if session is not None else -1


def _common(prompt: list[int], path: list[int]) -> int:
    pairs = zip(prompt, path, strict=False)
    differing = (i for i, (mine, theirs) in enumerate(pairs) if mine != theirs)
    return next(differing, min(len(prompt), len(path)))
