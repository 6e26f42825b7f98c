"""Replays a stream of requests through the scheduler; a cost model replaces model and clock.

Owns simulated time and the counters. Requests are admitted in stream order under every policy, so
that all policies serve the same sequence of requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from policies_bound import Opportunity
from policies_traffic import TrafficRequest

from kvreg_service.core import events
from kvreg_service.core.admission import AdmissionRules
from kvreg_service.core.ids import PAGE_TOKENS, RequestId
from kvreg_service.core.labels import Attach
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.requests.request import CachePolicy, Request
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.core.value import CostModel

COST = CostModel(slot_bytes=76_972_032, page_bytes=64 * 16_896)
"""Bytes of a slot and a page of the 27B shape on one of two cards."""

MAX_CONTEXT_TOKENS = 64 * 1_024
"""Above the length of every request of the traffic."""

_SLACK_TOKENS = PAGE_TOKENS
_DECODE_STEP_S = 0.1
"""One simulated token stands for about 15: the stream has shortened answers."""


@dataclass(frozen=True)
class Setup:
    """The sizes of one engine."""

    lanes: int
    entries: int
    num_pages: int
    anchors: int = 0

    @property
    def num_places(self) -> int:
        """The most sequences that exist at a time, without anchors."""
        return self.lanes + self.entries


@dataclass
class Outcome:
    """The counters of one policy on a stream."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    saved_s: float = 0.0
    returns: int = 0
    returns_hit: int = 0
    anchor_hits: int = 0
    evictions: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Outcome) -> Outcome:
        """Add the counters of two streams."""
        return Outcome(
            *(getattr(self, one.name) + getattr(other, one.name) for one in fields(self))
        )

    @property
    def hit_share(self) -> float:
        """Hit tokens as a share of all prompt tokens."""
        return self.hit_tokens / self.prompt_tokens

    @property
    def returns_share(self) -> float:
        """Returns that hit as a share of all returns."""
        return self.returns_hit / self.returns if self.returns else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def replay(
    stream: Sequence[TrafficRequest],
    opportunities: Sequence[Opportunity],
    setup: Setup,
    policy: EvictionPolicy,
) -> Outcome:
    """Serve a stream from its first request to its last and count what was reused."""
    return _Replay(stream, opportunities, setup, policy).run()


class _Replay:
    def __init__(
        self,
        stream: Sequence[TrafficRequest],
        opportunities: Sequence[Opportunity],
        setup: Setup,
        policy: EvictionPolicy,
    ) -> None:
        self._stream = stream
        self._opportunities = opportunities
        limits = SchedulerLimits(
            layout=SlotLayout(setup.lanes, setup.entries, anchors=setup.anchors),
            num_pages=setup.num_pages,
            max_context_tokens=min(MAX_CONTEXT_TOKENS, setup.num_pages * PAGE_TOKENS),
            # The chunk size only affects the number of steps.
            prefill_chunk_tokens=MAX_CONTEXT_TOKENS,
        )
        self.scheduler = Scheduler(limits, AdmissionRules(policy), COST)
        self._by_number = {request.number: index for index, request in enumerate(stream)}
        self._next = 0
        self._running: set[str] = set()
        self._num_sampled: Counter[str] = Counter()
        self._now_s = 0.0
        self._outcome = Outcome()

    def run(self) -> Outcome:
        while self._next < len(self._stream) or self._running:
            if not self._running:
                self._now_s = max(self._now_s, self._stream[self._next].arrival_s)
            self._submit_next()
            self._step()
        return self._outcome

    def _submit_next(self) -> None:
        """Submit the next request once it is certain to be admitted next."""
        if self._next == len(self._stream) or self.scheduler.queue_length:
            return
        one = self._stream[self._next]
        is_free = self.scheduler.num_running < self.scheduler.limits.layout.lanes
        if one.arrival_s > self._now_s or one.after in self._running or not is_free:
            return
        self._next += 1
        self._running.add(one.number)
        self.scheduler.submit(
            Request(
                request_id=RequestId(one.number),
                prompt=one.prompt,
                max_tokens=len(one.answer),
                arrival_s=self._now_s,
                boundary=one.boundary,
                cache_policy=CachePolicy(priority=-1 if one.kind.is_side else 0),
                heads=one.heads,
            )
        )

    def _step(self) -> None:
        plan = self.scheduler.schedule(self._now_s)
        self._now_s += _seconds(plan)
        result = StepResult(
            sampled={work.request_id: self._answer(work.request_id) for work in plan.work
                     if work.samples}
        )  # fmt: skip
        for event in self.scheduler.commit(plan, result, self._now_s):
            self._count(event)

    def _answer(self, request_id: RequestId) -> int:
        position = self._num_sampled[request_id]
        self._num_sampled[request_id] += 1
        return self._stream[self._by_number[request_id]].answer[position]

    def _count(self, event: events.Event) -> None:
        outcome = self._outcome
        match event:
            case events.Admitted():
                admission = event.admission
                index = self._by_number[event.request_id]
                outcome.prompt_tokens += admission.prompt_tokens
                outcome.hit_tokens += admission.cached_tokens
                outcome.saved_s += COST.prefill_seconds(admission.cached_tokens)
                outcome.anchor_hits += admission.attach is Attach.ANCHOR
                if self._stream[index].kind.is_return:
                    best = self._opportunities[index].tokens
                    outcome.returns += 1
                    outcome.returns_hit += admission.cached_tokens >= best - _SLACK_TOKENS
            case events.Evicted():
                outcome.evictions[event.reason] += 1
            case events.Finished():
                self._running.remove(event.request_id)
            case events.Failed():
                raise event.error


def _seconds(plan: StepPlan) -> float:
    prefill_s = sum(
        COST.prefill_seconds(work.end) - COST.prefill_seconds(work.start)
        for work in plan.work
        if not work.is_decode
    )
    return prefill_s + (_DECODE_STEP_S if any(work.samples for work in plan.work) else 0.0)
