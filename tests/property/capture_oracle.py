"""Checks where states are captured on the way of prompts, and what is freed for them."""

from __future__ import annotations

from event_mirror import Mirror
from ranking import COST, OPEN, Profile, Ranking
from seen import SeenRun, SeenState

from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.request import ResumePoint
from kvreg_service.core.scheduling.step import StepPlan
from kvreg_service.core.states.return_rates import Visits


class CaptureOracle:
    """Follows one mirror through the plan of each step."""

    def __init__(self, mirror: Mirror, profile: Profile, ranking: Ranking) -> None:
        self._mirror = mirror
        self._profile = profile
        self._ranking = ranking
        self._decided: dict[tuple[str, int], bool] = {}
        self._kept_before: list[SeenState] = []

    def begin_step(self) -> None:
        """Forget the decisions of the step before."""
        self._decided = {}
        self._kept_before = list(self._mirror.states)

    def decide(
        self, run: SeenRun, visits: Visits, now_s: float
    ) -> tuple[bool, bool, list[SeenState], SeenState | None]:
        """Say what must happen at a point that a run reaches and where no state is kept.

        Returns:
            Whether its capture is a must, whether it is captured, the states that the conversation
            goes on beyond then, and the state that is freed for it.
        """
        position = visits.prefix.position
        point = next(one for one in run.points if one.position == position)
        assert point.kind is visits.kind, "a state of another kind is captured than planned"
        path = self._mirror.path_to(run.identity, run.tokens, position)
        expected = run.request.boundaries
        passed = [one for one in path if point.kind.is_boundary and one.position not in expected]
        if self._profile.is_none and point.kind.is_boundary:
            self._check_old_boundary(run)
        must = self._must_capture(run, point)
        is_captured, victim = self._choose(run, point, visits, must, passed, path, now_s)
        self._decided[run.request.request_id, position] = is_captured
        if is_captured:
            run.capturing = point
        return must, is_captured, passed, victim

    def _must_capture(self, run: SeenRun, point: ResumePoint) -> bool:
        """Whether any open state gives way: to a mark, or to the boundary of a new session."""
        if point.is_marked:
            return True
        boundaries = [one.position for one in run.points if one.kind.is_boundary]
        is_new = not run.session.num_resumes or not self._profile.entries
        return is_new and point.position in boundaries[-1:]

    def _choose(
        self,
        run: SeenRun,
        point: ResumePoint,
        visits: Visits,
        must: bool,
        passed: list[SeenState],
        path: list[SeenState],
        now_s: float,
    ) -> tuple[bool, SeenState | None]:
        if self._mirror.num_free_slots:
            return True, None
        if self._profile.is_none and not must:
            return False, None
        victim = self._ranking.first_for_slot(
            run.request, run.session, now_s, up_to=OPEN, passed=passed
        )
        if victim is not None and not must:
            mine = self._ranking.level(run.session), self._value(run, point, visits)
            rival = (
                self._ranking.level(victim.session),
                self._ranking.value(victim, passed),
            )
            if rival >= mine:
                victim = self._ranking.first_on_path(path, run.request.tenant, now_s)
        return victim is not None, victim

    def _value(self, run: SeenRun, point: ResumePoint, visits: Visits) -> float:
        if self._profile.policy in ("lru", "none"):
            return 1.0
        saved_s = self._ranking.saved_s(run.identity, run.tokens, point.position)
        return saved_s * self._ranking.rate(visits)

    def _check_old_boundary(self, run: SeenRun) -> None:
        """Check that the boundary before is gone, unless another request needs it."""
        is_kept = run.boundary is not None and run.boundary in run.session.states
        assert not is_kept or run.session.num_running > 1, "an old boundary was not superseded"
        run.boundary = None

    def check_superseded(self, state: SeenState) -> None:
        """Check that the old boundary of a session gives way to a new one, under `none`."""
        assert self._profile.is_none, "a state is superseded under a policy that compares"
        (run,) = (one for one in self._mirror.runs if one.boundary is state)
        assert run.session is state.session
        assert run.session.num_running == 1, "a boundary that another request needs was freed"
        assert any(one.kind.is_boundary for one in run.points)
        run.boundary = None

    def check_plan(self, plan: StepPlan) -> None:
        """Check that each point of a chunk is captured, or is not for a known reason."""
        for work in plan.work:
            run = self._mirror.get_run(work.request_id)
            is_captured = work.capture_to is not None
            reached = [one for one in run.points if work.start < one.position <= work.end]
            if is_captured:
                assert run.request.cache_policy.retain, "a state of a passing request is captured"
                assert reached, "a state is captured where none is planned"
                assert reached[-1].position == work.end
                assert self._decided[work.request_id, work.end]
            for point in reached[:-1] if is_captured else reached:
                decision = self._decided.get((work.request_id, point.position))
                assert decision is False or self._is_useless(run, point), (
                    "a point was passed without a capture or a reason"
                )
            run.points = [one for one in run.points if one.position > work.end]

    def _is_useless(self, run: SeenRun, point: ResumePoint) -> bool:
        """Whether the state at a point was kept already, or is of a kind that `none` lacks."""
        tokens = tuple(run.tokens[: point.position])
        if any((one.identity, one.tokens) == (run.identity, tokens) for one in self._kept_before):
            return True
        if not self._profile.is_none or point.kind.is_boundary:
            return False
        heads = [one for one in self._kept_before if one.kind is StateKind.HEAD]
        return point.kind is not StateKind.HEAD or len(heads) >= self._profile.anchors


def freed_bytes(mirror: Mirror, state: SeenState) -> int:
    """Return the bytes that freeing a state frees: its slot and its own pages."""
    return COST.held_bytes(1, mirror.own_pages(state))
