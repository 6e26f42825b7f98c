"""The state machine of the engine: two verbs, `schedule` and `commit`.

Owns the queue and, through `Placement`, lanes, entries and pages. It holds no tensors, reads no
clock and never blocks: `schedule` says what the next step computes, `commit` takes in what came of
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvreg_service.core.admission import AdmissionPlanner, AdmissionRules
from kvreg_service.core.errors import (
    ConfigurationError,
    ContextTooLong,
    InvalidRequest,
    KvregError,
    Overloaded,
    QueueTimeout,
    SessionBusy,
    SessionNotFound,
    contain,
)
from kvreg_service.core.events import (
    Cancelled,
    CheckpointCaptured,
    Event,
    EvictionReason,
    Failed,
    Finished,
    FinishReason,
    ReuseFailed,
    TokenSampled,
)
from kvreg_service.core.ids import PAGE_TOKENS, EntryId, PageId, RequestId, SequenceId, pages_for
from kvreg_service.core.lane import Lane, Run
from kvreg_service.core.placement import Placement
from kvreg_service.core.quota import Quota
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import Checkpoint, Sequence
from kvreg_service.core.slots import SlotLayout
from kvreg_service.core.step import LanePreparation, StepPlan, StepResult, Work
from kvreg_service.core.value import CostModel


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
        self._rules = rules
        self.placement = Placement(limits.layout, limits.num_pages, rules.policy, cost)
        self.quotas: Mapping[str, Quota] = {}
        self._queue: deque[Request] = deque()

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
        return sum(lane.is_busy for lane in self.placement.lanes)

    @property
    def has_work(self) -> bool:
        """True while any request is queued or running."""
        return bool(self._queue) or self.num_running > 0

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue, its answer clamped to the context limit.

        Raises:
            InvalidRequest: an empty prompt, or fewer than one token asked for.
            ContextTooLong: no room for one answer token within the context limit.
            Overloaded: the queue is full, beyond those that idle lanes will take at once.
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
        num_idle = self.limits.layout.lanes - self.num_running
        num_waiting = len(self._queue) - num_idle
        if num_waiting >= self.limits.queue_limit:
            raise Overloaded(
                f"{num_waiting} requests wait for a lane, and the limit is "
                f"{self.limits.queue_limit}",
                retry_after_s=1.0,
                queue_length=len(self._queue),
            )

    def cancel(self, request_id: RequestId, now_s: float) -> list[Event]:
        """End a request wherever it is; what it computed so far is kept if it may be.

        Not between `schedule` and `commit`: the runner would carry the state beyond what is kept.

        Returns:
            The events of it; empty when the request is unknown or has already ended.
        """
        for request in self._queue:
            if request.request_id == request_id:
                self._queue.remove(request)
                self.placement.events.append(Cancelled(request_id, 0))
                return self._take_events()
        for lane in self.placement.lanes:
            if lane.run is not None and lane.run.request.request_id == request_id:
                event = Cancelled(request_id, lane.run.num_output_tokens)
                self._release(lane, lane.run, now_s)
                self.placement.events.append(event)
        return self._take_events()

    def drop_entry(self, entry: EntryId) -> list[Event]:
        """Give up the sequence in an entry, at any time.

        Returns:
            The events of it; those of a plan on its way are left to `commit`.

        Raises:
            NotFound: there is no such entry, or it is empty.
        """
        self.placement.evict(entry, EvictionReason.REQUESTED)
        return [self.placement.events.pop()]

    def drop_sequence(self, sequence_id: SequenceId, tenant: str | None = None) -> list[Event]:
        """Give up a kept sequence, wherever it rests.

        Returns:
            The events of it; those of a plan on its way are left to `commit`.

        Raises:
            SessionNotFound: the tenant, or nobody, keeps such a sequence.
            SessionBusy: a request runs on it.
        """
        self.placement.drop(self._find_kept(sequence_id, tenant))
        return [self.placement.events.pop()]

    def pin(
        self, sequence_id: SequenceId, ttl_s: float, now_s: float, tenant: str | None = None
    ) -> None:
        """Keep a sequence for ``ttl_s`` seconds whatever else needs its place.

        Raises:
            SessionNotFound, SessionBusy: as `drop_sequence`.
        """
        self._find_kept(sequence_id, tenant).pinned_until_s = now_s + ttl_s

    def unpin(self, sequence_id: SequenceId, tenant: str | None = None) -> None:
        """Let a sequence be given up again.

        Raises:
            SessionNotFound, SessionBusy: as `drop_sequence`.
        """
        self._find_kept(sequence_id, tenant).pinned_until_s = None

    def set_quotas(self, quotas: Mapping[str, Quota]) -> list[Event]:
        """Replace the quotas of all tenants.

        Raises:
            ConfigurationError: together they are more than there is. Nothing changed then.
        """
        self.quotas = dict(quotas)
        return []

    def _find_kept(self, sequence_id: SequenceId, tenant: str | None) -> Sequence:
        for sequence in self.placement.running():
            if sequence.sequence_id == sequence_id and tenant in (None, sequence.tenant):
                raise SessionBusy(
                    f"a request runs on sequence {sequence_id}", sequence_id=sequence_id
                )
        for sequence in self.placement.kept():
            if sequence.sequence_id == sequence_id and tenant in (None, sequence.tenant):
                return sequence
        raise SessionNotFound(f"sequence {sequence_id} is not kept", sequence_id=sequence_id)

    def schedule(self, now_s: float) -> StepPlan:
        """Return what to carry out next; an empty plan when there is nothing to do.

        Effects: the bookkeeping already stands where the plan leads. `commit` must follow.
        """
        self._expire_queue(now_s)
        preparation = self._admit_next(now_s)
        return StepPlan(preparation, tuple(self._select_work(now_s)))

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[Event]:
        """Take in the result of a plan and return everything that happened since the last call."""
        preparation = plan.preparation
        if preparation and preparation.request_id in result.failed and not result.is_prepared:
            self._fail_preparation(preparation, result)
        lanes = {lane.run.request.request_id: lane for lane in self.placement.lanes if lane.run}
        for work in plan.work:
            lane = lanes.get(work.request_id)
            if lane is None or lane.run is None or lane.sequence is None:
                continue
            if work.request_id in result.failed:
                self._fail_work(lane, work, result.failed[work.request_id], now_s)
            else:
                self._advance(lane, lane.run, lane.sequence, work, result, now_s)
        return self._take_events()

    def check_invariants(self) -> None:
        """Raise InvariantBroken when the bookkeeping contradicts itself."""
        self.placement.check_invariants()

    # Admission.

    def _expire_queue(self, now_s: float) -> None:
        limit_s = self.limits.queue_timeout_s
        while self._queue and now_s - self._queue[0].arrival_s > limit_s:
            request = self._queue.popleft()
            error = QueueTimeout(
                f"the request waited {now_s - request.arrival_s:.1f} s for a lane, and the limit "
                f"is {limit_s:g} s",
                retry_after_s=limit_s,
            )
            self.placement.events.append(Failed(request.request_id, error))

    def _admit_next(self, now_s: float) -> LanePreparation | None:
        if not self._queue:
            return None
        request = self._queue[0]
        promised = pages_for(request.prompt_tokens + request.max_tokens)
        running = sum(lane.run.promised_pages for lane in self.placement.lanes if lane.run)
        if running + promised > self.limits.num_pages:
            return None
        try:
            plan = AdmissionPlanner(
                self.placement.lanes,
                self.placement.registry,
                self._rules,
                self.placement.pages.num_free,
                now_s,
            ).plan(request)
            if plan is None:
                return None
            self._queue.popleft()
            moves = self.placement.admit(plan, promised, now_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's failure
            if self._queue and self._queue[0] is request:
                self._queue.popleft()
            self._retry_cold(request, contain("admission", error))
            return None
        return LanePreparation(request.request_id, tuple(moves))

    def _retry_cold(self, request: Request, error: KvregError) -> None:
        """Queue a request again without reuse, at the head; the second time it fails."""
        if request.may_reuse:
            self._queue.appendleft(replace(request, may_reuse=False))
            self.placement.events.append(ReuseFailed(request.request_id, error))
        else:
            self.placement.events.append(Failed(request.request_id, error))

    # One step's work.

    def _select_work(self, now_s: float) -> list[Work]:
        """Decode every running answer, and prefill at most one chunk, oldest request first."""
        work: list[Work] = []
        budget = self.limits.prefill_chunk_tokens
        for lane, run, sequence in self._running():
            remaining = len(sequence.ledger) - sequence.frontier
            is_decode = run.num_output_tokens > 0
            count = remaining if is_decode else min(remaining, budget)
            if run.capture_at is not None and sequence.frontier < run.capture_at:
                count = min(count, run.capture_at - sequence.frontier)
            if count == 0:
                continue
            if not is_decode:
                budget -= count
            end = sequence.frontier + count
            try:
                self.placement.take_pages(sequence, end, run.promised_pages, now_s)
            except Exception as error:  # noqa: BLE001 - contained like a failed admission
                self._release(lane, run, now_s)
                failed = Failed(run.request.request_id, contain("taking pages", error))
                self.placement.events.append(failed)
                continue
            work.append(self._work(lane, run, sequence, end))
        return work

    def _running(self) -> list[tuple[Lane, Run, Sequence]]:
        running = [
            (lane, lane.run, lane.sequence)
            for lane in self.placement.lanes
            if lane.run is not None and lane.sequence is not None
        ]
        return sorted(running, key=lambda one: one[1].request.arrival_s)

    def _work(self, lane: Lane, run: Run, sequence: Sequence, end: int) -> Work:
        layout = self.limits.layout
        is_capture = run.capture_at == end
        return Work(
            request_id=run.request.request_id,
            sequence_id=sequence.sequence_id,
            lane=lane.lane_id,
            slot=layout.lane_current(lane.lane_id),
            start=sequence.frontier,
            token_ids=tuple(sequence.ledger.tokens[sequence.frontier : end]),
            pages=tuple(sequence.pages),
            samples=end == len(sequence.ledger),
            capture_to=layout.lane_checkpoint(lane.lane_id) if is_capture else None,
            sampling=run.request.sampling,
        )

    # What came of it.

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
        self.placement.pages.seal(_filled_pages(sequence.pages, work))
        sequence.frontier = work.end
        if work.capture_to is not None:
            sequence.checkpoint = Checkpoint(work.end, request.boundary_kind)
            self.placement.events.append(
                CheckpointCaptured(request.request_id, work.end, request.boundary_kind)
            )
        if not work.samples:
            return
        token = result.sampled[request.request_id]
        run.num_output_tokens += 1
        sequence.ledger.append(token)
        self.placement.events.append(TokenSampled(request.request_id, token))
        reason: FinishReason | None = None
        if token in request.stop_token_ids or request.request_id in result.stopped:
            reason = FinishReason.STOP
        elif run.num_output_tokens >= request.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            event = Finished(request.request_id, reason, run.num_output_tokens)
            self._release(lane, run, now_s)
            self.placement.events.append(event)

    def _release(self, lane: Lane, run: Run, now_s: float) -> None:
        """End a run whose state is sound."""
        if run.request.retain:
            self.placement.rest(lane, now_s)
        else:
            # It captured nothing, so the checkpoint is still that of the sequence it borrowed.
            self.placement.rewind(lane, now_s)

    def _fail_work(self, lane: Lane, work: Work, error: KvregError, now_s: float) -> None:
        """End a run whose current state cannot be trusted."""
        if lane.sequence is not None and work.capture_to is not None:
            lane.sequence.checkpoint = None
        self.placement.rewind(lane, now_s)
        self.placement.events.append(Failed(work.request_id, error))

    def _fail_preparation(self, preparation: LanePreparation, result: StepResult) -> None:
        for lane in self.placement.lanes:
            run = lane.run
            if run is None or run.request.request_id != preparation.request_id:
                continue
            for entry in run.touched_entries:
                if self.placement.registry.find(entry) is not None:
                    self.placement.evict(entry, EvictionReason.FAILED)
            self.placement.give_up(lane, EvictionReason.FAILED)
            self._retry_cold(run.request, result.failed[preparation.request_id])

    def _take_events(self) -> list[Event]:
        events = self.placement.events
        self.placement.events = []
        return events


def _filled_pages(pages: list[PageId], work: Work) -> list[PageId]:
    return pages[work.start // PAGE_TOKENS : work.end // PAGE_TOKENS]
