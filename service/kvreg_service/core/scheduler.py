"""The state machine of the engine: two verbs, `schedule` and `commit`.

Owns the queue and, through `Holdings`, lanes, entries, anchors and pages. It holds no tensors,
reads no clock and never blocks: `schedule` returns the plan of the next step, `commit` applies its
result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvreg_service.core.admission import AdmissionRules
from kvreg_service.core.capture import AnchorCapture
from kvreg_service.core.custody import Custody
from kvreg_service.core.errors import (
    ConfigurationError,
    ContextTooLong,
    InvalidRequest,
    KvregError,
    wrap_failure,
)
from kvreg_service.core.events import (
    Cancelled,
    CheckpointCaptured,
    Event,
    Failed,
    Finished,
    Terminal,
    TokenSampled,
    UpkeepFailed,
)
from kvreg_service.core.holdings import Holdings
from kvreg_service.core.ids import (
    PAGE_TOKENS,
    PageId,
    RequestId,
    SlotId,
    pages_for,
)
from kvreg_service.core.intake import Intake
from kvreg_service.core.labels import EvictionReason, FinishReason
from kvreg_service.core.lane import Lane, Run
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import Checkpoint, Sequence
from kvreg_service.core.shares import Shares
from kvreg_service.core.slots import SlotLayout
from kvreg_service.core.step import LanePreparation, StepPlan, StepResult, Work
from kvreg_service.core.value import CostModel
from kvreg_service.core.waiting import WaitingLine


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

    def __init__(self, limits: SchedulerLimits, rules: AdmissionRules, cost: CostModel) -> None:
        if limits.num_pages < pages_for(limits.max_context_tokens):
            raise ConfigurationError(
                f"max_context is {limits.max_context_tokens} tokens, and {limits.num_pages} pages "
                f"hold only {limits.num_pages * PAGE_TOKENS}"
            )
        self.limits = limits
        self.holdings = Holdings(limits.layout, limits.num_pages, rules.policy, cost)
        self._shares = Shares(self.holdings, limits.max_context_tokens)
        self.custody = Custody(self.holdings, self._shares)
        self._capture = AnchorCapture(self.holdings)
        self._queue = WaitingLine(limits.queue_limit, limits.queue_timeout_s)
        self._intake = Intake(self._queue, self.holdings, self._shares, rules)

    @property
    def queue_length(self) -> int:
        """Requests that wait for a lane."""
        return len(self._queue)

    def count_queued(self, tenant: str | None = None) -> int:
        """Return how many requests wait for a lane, of all tenants or of one."""
        return sum(tenant in (None, request.tenant) for request in self._queue)

    @property
    def num_running(self) -> int:
        """Requests on lanes."""
        return sum(lane.is_busy for lane in self.holdings.lanes)

    @property
    def has_work(self) -> bool:
        """True while any request is queued or running."""
        return len(self._queue) > 0 or self.num_running > 0

    def next_expiry_s(self) -> float | None:
        """Return when the next sequence at rest expires, if any does."""
        return self.holdings.next_expiry_s()

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
        for lane in self.holdings.lanes:
            if lane.run is not None and lane.run.request.request_id == request_id:
                event = Cancelled(request_id, lane.run.num_output_tokens)
                self._end(lane, lane.run, event, now_s)
                return self._take_events()
        try:
            request = self._queue.find(request_id)
            if request is not None:
                self._queue.remove(request)
                self.holdings.events.append(Cancelled(request_id, 0))
        except Exception as error:  # noqa: BLE001 - the request ends by itself
            self.holdings.events.append(UpkeepFailed(wrap_failure("cancelling", error)))
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
        lanes = {lane.run.request.request_id: lane for lane in self.holdings.lanes if lane.run}
        for work in plan.work:
            lane = lanes.get(work.request_id)
            if lane is None or lane.run is None or lane.sequence is None:
                continue
            run = lane.run
            try:
                if work.request_id in result.failed:
                    self._fail_work(lane, work, result.failed[work.request_id], now_s)
                else:
                    self._advance(lane, run, lane.sequence, work, result, now_s)
            except Exception as error:  # noqa: BLE001 - it fails this request alone
                failed = Failed(work.request_id, wrap_failure("committing a step", error))
                self._end_broken(lane, run, failed)
        return self._take_events()

    def check_invariants(self, now_s: float = 0.0) -> None:
        """Raise InvariantBroken when the bookkeeping contradicts itself."""
        self.holdings.check_invariants()
        self._shares.check_invariants(now_s)

    # The plan of a step.

    def _expire(self, now_s: float) -> None:
        try:
            self.holdings.expire(now_s)
            for late, error in self._queue.expire(now_s):
                self.holdings.events.append(Failed(late.request_id, error))
        except Exception as error:  # noqa: BLE001 - no request's failure; the next step retries
            self.holdings.recount()
            self.holdings.events.append(UpkeepFailed(wrap_failure("expiring sequences", error)))

    def _select_work(self, now_s: float) -> list[Work]:
        """Decode every running answer, and prefill at most one chunk, oldest request first."""
        work: list[Work] = []
        budget = self.limits.prefill_chunk_tokens
        for lane, run, sequence in self._running():
            try:
                one = self._next_work(lane, run, sequence, budget, now_s)
            except Exception as error:  # noqa: BLE001 - it fails this request alone
                self.holdings.recount()
                failed = Failed(run.request.request_id, wrap_failure("planning a step", error))
                self._end(lane, run, failed, now_s)
                continue
            if one is not None:
                work.append(one)
                if run.num_output_tokens == 0:
                    budget -= len(one.token_ids)
        return work

    def _next_work(
        self, lane: Lane, run: Run, sequence: Sequence, budget: int, now_s: float
    ) -> Work | None:
        """Return the work of a run in this step, its pages allocated; None if it has to wait."""
        count = len(sequence.ledger) - sequence.frontier
        if run.num_output_tokens == 0:
            count = min(count, budget)
        stop = run.next_stop(sequence.frontier)
        if stop is not None:
            count = min(count, stop - sequence.frontier)
        if count == 0:
            return None
        end = sequence.frontier + count
        self.holdings.take_pages(sequence, end, run.promised_pages, now_s)
        return self._work(lane, run, sequence, end, now_s)

    def _running(self) -> list[tuple[Lane, Run, Sequence]]:
        running = [
            (lane, lane.run, lane.sequence)
            for lane in self.holdings.lanes
            if lane.run is not None and lane.sequence is not None
        ]
        return sorted(running, key=lambda one: one[1].request.arrival_s)

    def _work(self, lane: Lane, run: Run, sequence: Sequence, end: int, now_s: float) -> Work:
        layout = self.limits.layout
        capture_to: SlotId | None = None
        if run.capture_at == end:
            capture_to = layout.lane_checkpoint(lane.lane_id)
        else:
            anchor = self._capture.reserve(run, sequence, end, now_s)
            if anchor is not None:
                capture_to = layout.anchor(anchor.anchor_id)
        return Work(
            request_id=run.request.request_id,
            sequence_id=sequence.sequence_id,
            lane=lane.lane_id,
            slot=layout.lane_current(lane.lane_id),
            start=sequence.frontier,
            token_ids=tuple(sequence.ledger.tokens[sequence.frontier : end]),
            pages=tuple(sequence.pages),
            samples=end == len(sequence.ledger),
            capture_to=capture_to,
            sampling=run.request.sampling,
        )

    # The result of a step.

    def _advance(
        self,
        lane: Lane,
        run: Run,
        sequence: Sequence,
        work: Work,
        result: StepResult,
        now_s: float,
    ) -> None:
        request = run.request
        self.holdings.pages.seal(_filled_pages(sequence.pages, work))
        sequence.frontier = work.end
        if run.capturing is not None:
            self._capture.keep(run, sequence)
            self._shares.settle(request.tenant, now_s)
        elif work.capture_to is not None:
            sequence.checkpoint = Checkpoint(work.end, request.boundary_kind)
            self.holdings.events.append(
                CheckpointCaptured(request.request_id, work.end, request.boundary_kind)
            )
        if not work.samples:
            return
        token = result.sampled[request.request_id]
        run.num_output_tokens += 1
        sequence.ledger.append(token)
        self.holdings.events.append(TokenSampled(request.request_id, token))
        reason: FinishReason | None = None
        if token in request.stop_token_ids or request.request_id in result.stopped:
            reason = FinishReason.STOP
        elif run.num_output_tokens >= request.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            event = Finished(request.request_id, reason, run.num_output_tokens)
            self._end(lane, run, event, now_s)

    def _end(self, lane: Lane, run: Run, event: Terminal, now_s: float) -> None:
        """End a run whose state is valid; its sequence is kept if its policy allows."""
        try:
            if run.request.cache_policy.retain:
                self.holdings.rest(lane, now_s)
            else:
                # It captured nothing, so the checkpoint is that of the reused sequence.
                self.holdings.rewind(lane, now_s)
            self._shares.settle(run.request.tenant, now_s)
        except Exception as error:  # noqa: BLE001 - the answer is complete, and stays so
            self.holdings.scrap(lane)
            self.holdings.events.append(UpkeepFailed(wrap_failure("keeping a sequence", error)))
        self.holdings.events.append(event)

    def _end_broken(self, lane: Lane, run: Run, event: Failed) -> None:
        """End a run after a failure in the middle of its commit, unless it has ended already."""
        if lane.run is run:
            self.holdings.scrap(lane)
        if not any(
            isinstance(one, Terminal) and one.request_id == event.request_id
            for one in self.holdings.events
        ):
            self.holdings.events.append(event)

    def _fail_work(self, lane: Lane, work: Work, error: KvregError, now_s: float) -> None:
        """End a run whose current state cannot be trusted."""
        sequence = lane.require_sequence()
        is_anchor = lane.run is not None and lane.run.capturing is not None
        if work.capture_to is not None and not is_anchor:
            sequence.checkpoint = None
        self.holdings.rewind(lane, now_s)
        self._shares.settle(sequence.tenant, now_s)
        self.holdings.events.append(Failed(work.request_id, error))

    def _fail_preparation(self, preparation: LanePreparation, result: StepResult) -> None:
        for lane in self.holdings.lanes:
            run = lane.run
            if run is None or run.request.request_id != preparation.request_id:
                continue
            error = result.failed[preparation.request_id]
            try:
                for entry in run.touched_entries:
                    if self.holdings.registry.find(entry) is not None:
                        self.holdings.evict(entry, EvictionReason.FAILED)
                self.holdings.give_up_lane(lane, EvictionReason.FAILED)
            except Exception as fault:  # noqa: BLE001 - handled below
                error = wrap_failure("undoing a failed admission", fault)
                self._empty_touched(run)
                self.holdings.scrap(lane)
            self._intake.retry_cold(run.request, error)

    def _empty_touched(self, run: Run) -> None:
        """Empty the entries that a failed preparation may have written."""
        for entry in run.touched_entries:
            if self.holdings.registry.find(entry) is not None:
                self.holdings.registry.remove(entry)

    def _take_events(self) -> list[Event]:
        events = self.holdings.events
        self.holdings.events = []
        return events


def _filled_pages(pages: list[PageId], work: Work) -> list[PageId]:
    return pages[work.start // PAGE_TOKENS : work.end // PAGE_TOKENS]
