"""The state machine of the engine: two verbs, `schedule` and `commit`.

Owns the queue, the lanes and the kept states. It holds no tensors, reads no clock and never blocks:
`schedule` returns the plan of the next step, `commit` applies its result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvreg_service.core.errors import (
    ConfigurationError,
    ContextTooLong,
    InvalidRequest,
    wrap_failure,
)
from kvreg_service.core.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    Terminal,
    TokenSampled,
    UpkeepFailed,
)
from kvreg_service.core.ids import PAGE_TOKENS, LaneId, RequestId, SlotId, pages_for
from kvreg_service.core.labels import EvictionReason, FinishReason, StateKind
from kvreg_service.core.memory.slots import LaneOwner, SlotLayout
from kvreg_service.core.requests.request import Request, ResumePoint
from kvreg_service.core.requests.waiting_line import WaitingLine
from kvreg_service.core.scheduling.admission import AdmissionPlanner
from kvreg_service.core.scheduling.eviction import Eviction
from kvreg_service.core.scheduling.intake import Intake
from kvreg_service.core.scheduling.lane import (
    Lane,
    Run,
    rebuild,
    running_tables,
    working_slots,
)
from kvreg_service.core.scheduling.lane_starter import LaneStarter
from kvreg_service.core.scheduling.reservations import Reservations
from kvreg_service.core.scheduling.session_control import SessionControl
from kvreg_service.core.scheduling.step import LanePreparation, StepPlan, StepResult, Work
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.kept_state import KeptState
from kvreg_service.core.states.policies import EvictionPolicy
from kvreg_service.core.states.return_rates import Visits
from kvreg_service.core.states.store import StateStore


@dataclass(frozen=True)
class SchedulerLimits:
    """Sizes that are fixed when the engine starts."""

    layout: SlotLayout
    num_pages: int
    max_context_tokens: int
    prefill_chunk_tokens: int = 512
    queue_limit: int = 64
    queue_timeout_s: float = 60.0


class Scheduler:
    """Plans steps for up to C running requests and a queue behind them.

    Every submitted request ends in exactly one terminal event: finished, cancelled or failed.
    Not thread-safe; one thread calls everything.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        policy: EvictionPolicy,
        cost: CostModel,
        *,
        prefix_reuse: bool = True,
    ) -> None:
        if limits.num_pages < pages_for(limits.max_context_tokens):
            raise ConfigurationError(
                f"max_context is {limits.max_context_tokens} tokens, and {limits.num_pages} pages "
                f"hold only {limits.num_pages * PAGE_TOKENS}"
            )
        self.limits = limits
        self.lanes = [Lane(LaneId(index)) for index in range(limits.layout.lanes)]
        self.store = StateStore(limits.layout, limits.num_pages, cost)
        self.eviction = Eviction(self.store, self.lanes, policy)
        self._reservations = Reservations(
            self.store, self.lanes, self.eviction, limits.max_context_tokens
        )
        self.sessions = SessionControl(self.store, self.lanes, self._reservations)
        self.planner = AdmissionPlanner(
            self.store, self.lanes, self.eviction, self._reservations, prefix_reuse=prefix_reuse
        )
        self._queue = WaitingLine(limits.queue_limit, limits.queue_timeout_s)
        starter = LaneStarter(self.store, self.lanes, self.eviction, self._reservations)
        self._intake = Intake(
            self._queue, self.store, self.lanes, self._reservations, self.planner, starter
        )
        self._num_answered = 0

    def count_queued(self, tenant: str | None = None) -> int:
        """Return how many requests wait for a lane, of all tenants or of one."""
        return sum(tenant in (None, request.tenant) for request in self._queue)

    @property
    def num_running(self) -> int:
        """Requests on lanes."""
        return sum(lane.is_busy for lane in self.lanes)

    @property
    def has_work(self) -> bool:
        """True while any request is queued or running."""
        return len(self._queue) > 0 or self.num_running > 0

    def next_expiry_s(self) -> float | None:
        """Return when the next session at rest expires, if any does."""
        return self.store.next_expiry_s()

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue, its answer clamped to the context limit.

        Raises:
            InvalidRequest: the prompt is empty, or ``max_tokens`` is less than 1.
            ContextTooLong: no room for one answer token within the context limit.
            Overloaded: the queue is full, not counting the requests that idle lanes take at once.
        """
        if request.prompt_tokens == 0:
            raise InvalidRequest("the prompt is empty", param="messages")
        if request.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens is {request.max_tokens}, and must be at least 1", param="max_tokens"
            )
        if request.prompt_tokens + 1 > self.limits.max_context_tokens:
            raise ContextTooLong(request.prompt_tokens, self.limits.max_context_tokens)
        self.require_room()
        room = self.limits.max_context_tokens - request.prompt_tokens
        self._queue.append(replace(request, max_tokens=min(request.max_tokens, room)))

    def require_room(self) -> None:
        """Raise Overloaded when one more request could neither run nor wait."""
        self._queue.require_room(self.limits.layout.lanes - self.num_running)

    def cancel(self, request_id: RequestId, now_s: float) -> list[Event]:
        """Cancel a queued or running request; what it computed is kept if its policy allows.

        Never between `schedule` and `commit`: the runner would advance the state beyond what is
        kept.

        Returns:
            The events of it; empty when the request is unknown or has already ended.
        """
        for lane in self.lanes:
            if lane.run is not None and lane.run.request.request_id == request_id:
                event = Cancelled(request_id, lane.run.num_output_tokens)
                self._end_and_keep(lane, lane.run, event, now_s)
                return self._take_events()
        try:
            request = self._queue.find(request_id)
            if request is not None:
                self._queue.remove(request)
                self.store.events.append(Cancelled(request_id, 0))
        except Exception as error:  # noqa: BLE001 - the request ends by itself
            self.store.events.append(UpkeepFailed(wrap_failure("cancelling", error)))
        return self._take_events()

    def schedule(self, now_s: float) -> StepPlan:
        """Return the plan of the next step; an empty one if there is nothing to do.

        Effects: the bookkeeping is already as it will be after the plan. `commit` must follow.
        """
        self._expire(now_s)
        preparation = self._intake.admit_next(now_s)
        return StepPlan(preparation, tuple(self._select_work(now_s)))

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[Event]:
        """Apply the result of a plan and return all events since the last call."""
        preparation = plan.preparation
        if preparation and preparation.request_id in result.failed and not result.is_prepared:
            self._fail_preparation(preparation, result)
        lanes = {lane.run.request.request_id: lane for lane in self.lanes if lane.run}
        for work in plan.work:
            lane = lanes.get(work.request_id)
            if lane is None or lane.run is None:
                continue
            run = lane.run
            try:
                if work.request_id in result.failed:
                    failed = Failed(work.request_id, result.failed[work.request_id])
                    self._end(lane, run, failed, now_s)
                else:
                    self._advance(lane, run, work, result, now_s)
            except Exception as error:  # noqa: BLE001 - it fails this request alone
                self._end_broken(
                    lane, run, Failed(work.request_id, wrap_failure("committing a step", error))
                )
        return self._take_events()

    def check_invariants(self, now_s: float = 0.0) -> None:
        """Raise InvariantBroken when the bookkeeping contradicts itself."""
        self.store.check_invariants(working_slots(self.lanes), running_tables(self.lanes))
        if not self.limits.layout.keep_current:
            self.store.check_dropped(lane.session for lane in self.lanes if lane.session)
        self._reservations.check_invariants(now_s)

    # The plan of a step.

    def _expire(self, now_s: float) -> None:
        try:
            self.store.expire(now_s)
            for late, error in self._queue.expire(now_s):
                self.store.events.append(Failed(late.request_id, error))
        except Exception as error:  # noqa: BLE001 - no request's failure; the next step retries
            rebuild(self.store, self.lanes)
            self.store.events.append(UpkeepFailed(wrap_failure("expiring sessions", error)))

    def _select_work(self, now_s: float) -> list[Work]:
        """Decode every running answer, and prefill at most one chunk, oldest request first."""
        work: list[Work] = []
        budget = self.limits.prefill_chunk_tokens
        running = [(lane, lane.run) for lane in self.lanes if lane.run is not None]
        for lane, run in sorted(running, key=lambda one: one[1].request.arrival_s):
            try:
                one = self._next_work(lane, run, budget, now_s)
            except Exception as error:  # noqa: BLE001 - it fails this request alone
                failed = Failed(run.request.request_id, wrap_failure("planning a step", error))
                self._end_broken(lane, run, failed)
                continue
            if one is not None:
                work.append(one)
                if run.num_output_tokens == 0:
                    budget -= len(one.token_ids)
        return work

    def _next_work(self, lane: Lane, run: Run, budget: int, now_s: float) -> Work | None:
        """Return the work of a run in this step, its pages allocated; None if it has to wait."""
        count = len(run.ledger) - run.num_computed
        if run.num_output_tokens == 0:
            count = min(count, budget)
        if count == 0:
            return None
        assert run.slot is not None, "a running request has a working slot"
        end = run.num_computed + count
        if run.points:
            end = self._reserve_capture(lane, run, end, now_s)
        self.eviction.take_pages(run, end, now_s)
        return Work(
            request_id=run.request.request_id,
            session_id=run.session.session_id,
            lane=lane.lane_id,
            slot=run.slot,
            start=run.num_computed,
            token_ids=tuple(run.ledger.tokens[run.num_computed : end]),
            pages=tuple(run.pages),
            samples=end == len(run.ledger),
            capture_to=run.capturing[1] if run.capturing else None,
            sampling=run.request.sampling,
        )

    def _reserve_capture(self, lane: Lane, run: Run, end: int, now_s: float) -> int:
        """Return where the next chunk of a prompt ends: at ``end``, or at a point before it.

        Effects: takes a slot for the state at that point, and drops the points before ``end`` whose
        states are kept already or worth no slot.
        """
        while run.points and run.points[0].position <= end:
            point = run.points.pop(0)
            if self._is_worth_a_slot(run, point, now_s):
                run.capturing = (point, self.store.slots.take(LaneOwner(lane.lane_id)))
                return point.position
        return end

    def _is_worth_a_slot(self, run: Run, point: ResumePoint, now_s: float) -> bool:
        """Return whether a state at ``point`` is to be captured; a slot is free then.

        The deepest boundary of a new session is always captured, as far as pins and the newcomers
        that were answered last allow: without it a new session would lose to old ones. So is a head
        that the client marked, and without entries, where a lane keeps one session, every boundary.
        """
        if self.store.find_at(run.ledger, point.position) is not None:
            return False
        policy, layout = self.eviction.policy, self.limits.layout
        if policy.keeps_only_r_sessions and not point.kind.is_boundary:
            num_heads = sum(one.kind is StateKind.HEAD for one in self.store)
            if point.kind is not StateKind.HEAD or num_heads >= layout.anchors:
                return False
        if policy.keeps_only_r_sessions and run.boundary is not None and point.kind.is_boundary:
            boundary, run.boundary = run.boundary, None
            if boundary in run.session.states and run.session.num_running == 1:
                self.store.free(boundary, EvictionReason.SUPERSEDED)
        is_last = not any(later.kind.is_boundary for later in run.points)
        visits = Visits(run.ledger.prefix_key(point.position), point.kind, pace=run.session.pace)
        return self.eviction.make_room_for(
            run,
            self.eviction.prospect(run.session, visits, run.ledger, point.position),
            now_s,
            must_capture=point.is_marked
            or (
                point.kind.is_boundary
                and is_last
                and (not run.session.num_resumes or not layout.entries)
            ),
            passed=self._passed(run, point),
        )

    def _passed(self, run: Run, point: ResumePoint) -> list[KeptState]:
        """Return the states that the conversation goes on beyond once ``point`` is captured."""
        if not point.kind.is_boundary:
            return []
        path = self.store.path_to(run.ledger, point.position)
        return [one for one in path if one.position not in run.request.boundaries]

    # The result of a step.

    def _advance(self, lane: Lane, run: Run, work: Work, result: StepResult, now_s: float) -> None:
        request = run.request
        run.num_computed = work.end
        if run.capturing is not None:
            self._keep_captured(run, now_s)
        if not work.samples:
            return
        token = result.sampled[request.request_id]
        run.num_output_tokens += 1
        run.ledger.append(token)
        self.store.events.append(TokenSampled(request.request_id, token))
        reason: FinishReason | None = None
        if token in request.stop_token_ids or request.request_id in result.stopped:
            reason = FinishReason.STOP
        elif run.num_output_tokens >= request.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            event = Finished(request.request_id, reason, run.num_output_tokens)
            self._end_and_keep(lane, run, event, now_s)

    def _keep_captured(self, run: Run, now_s: float) -> None:
        """Keep the state that a step has captured."""
        assert run.capturing is not None, "a point is captured"
        (point, slot), run.capturing = run.capturing, None
        if self.store.find_at(run.ledger, point.position) is not None:
            # Another request has captured the same state in the same step.
            self.store.slots.free(slot)
            return
        state = self._keep(run, point, slot, now_s)
        if point.kind.is_boundary:
            run.boundary = state
        self._reservations.settle(run.request.tenant, now_s)

    def _keep(self, run: Run, point: ResumePoint, slot: SlotId, now_s: float) -> KeptState:
        is_shared = point.kind is StateKind.HEAD or (
            point.kind is StateKind.BRANCH_POINT and not run.session.num_resumes
        )
        session = run.session
        if is_shared:
            session = self.store.begin_session(run.request.tenant, now_s, is_shared=True)
        state = self.store.keep(
            session,
            point.kind,
            run.ledger,
            point.position,
            slot=slot,
            pages=run.pages,
            request_id=run.request.request_id,
            now_s=now_s,
            is_marked=point.is_marked,
            boundaries=run.request.boundaries,
        )
        run.visits.append(state.visits)
        return state

    def _end_and_keep(self, lane: Lane, run: Run, event: Terminal, now_s: float) -> None:
        """End a run whose state is valid, and keep that state if its policy allows."""
        try:
            if run.request.cache_policy.retain:
                ttl_s = run.request.cache_policy.ttl_s
                run.session.expires_s = now_s + ttl_s if ttl_s is not None else None
                self._keep_frontier(run, now_s)
            self._release(lane, run, now_s)
            self._reservations.settle(run.request.tenant, now_s)
        except Exception as error:  # noqa: BLE001 - the answer is complete, and stays so
            self._scrap(lane)
            self.store.events.append(UpkeepFailed(wrap_failure("keeping a state", error)))
        self.store.events.append(event)

    def _keep_frontier(self, run: Run, now_s: float) -> None:
        """Turn the working state into a kept one. No state is copied."""
        position = run.num_computed
        if run.slot is None or self.store.find_at(run.ledger, position) is not None:
            return
        if position > 0:
            self._keep(run, ResumePoint(position, StateKind.FRONTIER), run.slot, now_s)
            run.slot = None

    def _end(self, lane: Lane, run: Run, event: Failed, now_s: float) -> None:
        """End a run whose working state cannot be trusted. What it captured before stays."""
        self._release(lane, run, now_s)
        self.store.events.append(event)

    def _release(self, lane: Lane, run: Run, now_s: float) -> None:
        """Take a run off its lane, and begin the rest of the states that it used."""
        for slot in run.slots:
            self.store.slots.free(slot)
        self.store.pages.release(run.pages)
        lane.run = None
        session = run.session
        session.num_running -= 1
        session.last_used_s = now_s
        self._num_answered += 1
        session.answered = self._num_answered
        for visits in run.visits:
            self.store.rates.rest(visits)
        self.store.forget_if_gone(session)
        if not session.states:
            lane.session = None

    def _end_broken(self, lane: Lane, run: Run, event: Failed) -> None:
        """End a run after a failure in the middle of a change, unless it has ended already."""
        if lane.run is run:
            self._scrap(lane)
        if not any(
            isinstance(one, Terminal) and one.request_id == event.request_id
            for one in self.store.events
        ):
            self.store.events.append(event)

    def _scrap(self, lane: Lane) -> None:
        """Empty a lane after a failure in the middle of a change."""
        lane.run = None
        rebuild(self.store, self.lanes)

    def _fail_preparation(self, preparation: LanePreparation, result: StepResult) -> None:
        """Take a request off its lane whose state was not copied; kept states are as before."""
        for lane in self.lanes:
            run = lane.run
            if run is not None and run.request.request_id == preparation.request_id:
                self._scrap(lane)
                self._intake.retry_cold(run.request, result.failed[preparation.request_id])

    def _take_events(self) -> list[Event]:
        events = self.store.events
        self.store.events = []
        return events
