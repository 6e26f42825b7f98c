"""Replays a timed stream through the scheduler without a model, and counts reused tokens.

Owns one replay. A request occupies its lane from the start to the end time of the stream,
independently of how many tokens it reuses.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from traces_sessions import TraceRequest

from kvreg_service.core import events
from kvreg_service.core.ids import PAGE_TOKENS, RequestId
from kvreg_service.core.labels import StateKind
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.requests.request import Request, ResumePoint
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.scheduling.step import StepResult
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.policies import EvictionPolicy

# The shape of the 27B model at TP2: bytes of one state slot, and of one page of 64 tokens.
COST = CostModel(slot_bytes=76_972_032, page_bytes=64 * 16_896)


@dataclass(frozen=True)
class TraceSetup:
    """The sizes of one engine. A state and a page have the size of the 27B shape."""

    lanes: int
    entries: int
    num_pages: int
    anchors: int = 2
    keep_current: bool = True

    @property
    def layout(self) -> SlotLayout:
        """The state slots."""
        return SlotLayout(self.lanes, self.entries, self.keep_current, self.anchors)


def replay_trace(
    stream: Sequence[TraceRequest], setup: TraceSetup, policy: EvictionPolicy, pace: float = 1.0
) -> int:
    """Serve the stream with all its times multiplied by ``pace``.

    Returns:
        The number of reused prompt tokens.
    """
    return _TraceReplay(stream, setup, policy, pace).run()


class _TraceReplay:
    def __init__(
        self,
        stream: Sequence[TraceRequest],
        setup: TraceSetup,
        policy: EvictionPolicy,
        pace: float,
    ) -> None:
        self._stream = stream
        self._pace = pace
        max_context_tokens = setup.num_pages * PAGE_TOKENS
        limits = SchedulerLimits(
            layout=setup.layout,
            num_pages=setup.num_pages,
            max_context_tokens=max_context_tokens,
            prefill_chunk_tokens=max_context_tokens,
        )
        self._scheduler = Scheduler(limits, policy, COST)
        self._answers: dict[RequestId, TraceRequest] = {}
        self._sampled: dict[RequestId, int] = {}
        self._ends: list[tuple[float, RequestId]] = []
        self._hit_tokens = 0

    def run(self) -> int:
        for one in self._stream:
            self._end_until(one.start_s)
            self._begin(one)
        self._end_until(float("inf"))
        return self._hit_tokens

    def _begin(self, one: TraceRequest) -> None:
        request_id, now_s = RequestId(one.number), one.start_s * self._pace
        self._answers[request_id] = one
        self._sampled[request_id] = 0
        heapq.heappush(self._ends, (one.end_s, request_id))
        self._scheduler.submit(
            Request(
                request_id=request_id,
                prompt=one.prompt,
                max_tokens=len(one.answer),
                arrival_s=now_s,
                resume_points=(
                    ResumePoint(len(one.prompt) - 1, StateKind.TURN),
                    *(
                        ResumePoint(head.num_tokens, StateKind.HEAD, head.is_marked)
                        for head in one.heads
                    ),
                ),
            )
        )
        # Step until the first token; prefill may take several steps because chunks end at heads.
        while request_id in self._sampled and not self._sampled[request_id]:
            self._step(now_s, ends=None)

    def _end_until(self, time_s: float) -> None:
        while self._ends and self._ends[0][0] <= time_s:
            end_s, request_id = heapq.heappop(self._ends)
            if request_id in self._sampled:
                self._step(end_s * self._pace, ends=request_id)

    def _step(self, now_s: float, *, ends: RequestId | None) -> None:
        plan = self._scheduler.schedule(now_s)
        result = StepResult(is_prepared=True)
        for work in plan.work:
            if work.samples:
                result.sampled[work.request_id] = self._next_token(work.request_id)
        if ends is not None:
            result.stopped.add(ends)
        for event in self._scheduler.commit(plan, result, now_s):
            match event:
                case events.Admitted():
                    self._hit_tokens += event.admission.cached_tokens
                case events.Finished():
                    del self._answers[event.request_id], self._sampled[event.request_id]
                case events.Failed():
                    raise event.error

    def _next_token(self, request_id: RequestId) -> int:
        position = self._sampled[request_id]
        self._sampled[request_id] += 1
        return self._answers[request_id].answer[position]
