"""What an observer knows who sees requests, steps and events, and nothing of the scheduler.

Owns its own account of every running and kept sequence. Where it differs from the scheduler's,
either the bookkeeping or the events are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvreg_service.core import events
from kvreg_service.core.events import EvictionReason
from kvreg_service.core.request import Request
from kvreg_service.core.step import StepPlan, StepResult


@dataclass
class Seen:
    """One sequence, as plain values."""

    sequence_id: int
    tenant: str
    tokens: list[int]
    frontier: int
    has_current: bool
    checkpoint: int | None
    checkpoint_kind: str | None
    num_hits: int
    last_used_s: float
    lane: int | None
    entry: int | None
    request: Request | None
    superseded_by: int | None
    family: int

    @property
    def positions(self) -> dict[str, int]:
        """Where it can be resumed, by kind."""
        found = {"append": self.frontier} if self.has_current else {}
        if self.checkpoint is not None:
            found[f"restore_{self.checkpoint_kind}"] = self.checkpoint
        return {kind: position for kind, position in found.items() if position > 0}

    @property
    def reusable(self) -> int:
        return max(self.positions.values(), default=0)

    @property
    def num_pages(self) -> int:
        """At rest it holds the pages of what is reusable, and no more."""
        return (self.reusable + 63) // 64


_PLANNED = (events.Forked, events.Detached, events.Admitted, events.Attached)
_PLANNED_EVICTIONS = {
    EvictionReason.ENTRY_NEEDED,
    EvictionReason.PAGES_NEEDED,
    EvictionReason.DISPLACED,
    EvictionReason.REQUESTED,
}


def is_planned(event: events.Event) -> bool:
    """Whether an event belongs to `schedule` rather than to what came of it."""
    if isinstance(event, events.Evicted):
        return event.reason in _PLANNED_EVICTIONS
    return isinstance(event, _PLANNED)


class Mirror:
    """Every sequence, told by events. ``before_eviction`` is called while the victim is known."""

    def __init__(
        self,
        keep_current: bool,
        before_eviction: Callable[[Seen, EvictionReason, float], None],
    ) -> None:
        self.keep_current = keep_current
        self._before_eviction = before_eviction
        self.sequences: dict[int, Seen] = {}
        self.requests: dict[str, Request] = {}
        self.terminals: dict[str, events.Terminal] = {}
        self.outputs: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.cached: dict[str, int] = {}
        self._new_fork: Seen | None = None
        self._stand_ins: dict[str, int] = {}

    def kept(self) -> list[Seen]:
        return [seen for seen in self.sequences.values() if seen.request is None]

    def running(self) -> list[Seen]:
        return [seen for seen in self.sequences.values() if seen.request is not None]

    def of_request(self, request_id: str) -> Seen | None:
        for seen in self.running():
            if seen.request is not None and seen.request.request_id == request_id:
                return seen
        return None

    def submitted(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        self.computed[request.request_id] = 0

    def apply_step(
        self,
        plan: StepPlan,
        result: StepResult,
        happened: Iterable[events.Event],
        schedule_s: float,
        commit_s: float,
    ) -> None:
        happened = list(happened)
        for event in happened:
            if is_planned(event):
                self.apply(event, schedule_s)
        for work in plan.work:
            seen = self.of_request(work.request_id)
            if seen is None or work.request_id in result.failed:
                if seen is not None and work.capture_to is not None:
                    seen.checkpoint = None
                continue
            seen.frontier = work.end
            prompt_tokens = self.requests[work.request_id].prompt_tokens
            self.computed[work.request_id] += max(0, min(work.end, prompt_tokens) - work.start)
        for event in happened:
            if not is_planned(event):
                self.apply(event, commit_s)

    def apply(self, event: events.Event, now_s: float) -> None:
        match event:
            case events.Forked():
                origin = self.sequences[event.origin_id]
                self._new_fork = self.sequences[event.sequence_id] = replace(
                    origin,
                    sequence_id=event.sequence_id,
                    tokens=list(origin.tokens),
                    has_current=origin.has_current and self.keep_current,
                    lane=None,
                    entry=event.entry,
                    superseded_by=event.origin_id,
                )
            case events.Detached():
                seen = self.sequences[event.sequence_id]
                assert seen.lane == event.lane
                seen.lane, seen.entry = None, event.entry
                seen.has_current = seen.has_current and self.keep_current
            case events.Admitted():
                self._admitted(event, now_s)
            case events.ReuseFailed():
                request = self.requests[event.request_id]
                assert request.may_reuse, "only once is a request computed from nothing instead"
                self.requests[event.request_id] = replace(request, may_reuse=False)
                self._new_fork = None
            case events.Attached():
                assert self.sequences[event.sequence_id].lane == event.lane
            case events.Evicted():
                self._before_eviction(self.sequences[event.sequence_id], event.reason, now_s)
                seen = self.sequences.pop(event.sequence_id)
                assert (seen.lane, seen.entry) == (event.lane, event.entry)
            case events.CheckpointCaptured():
                seen = self._running(event.request_id)
                assert seen.frontier == event.position
                seen.checkpoint = event.position
                seen.checkpoint_kind = event.kind.value
            case events.TokenSampled():
                seen = self._running(event.request_id)
                assert len(seen.tokens) == seen.frontier
                seen.tokens.append(event.token)
                self.outputs[event.request_id].append(event.token)
            case events.Terminal():
                self._ended(event, now_s)
            case _:
                raise AssertionError(f"an unknown event: {event}")

    def _running(self, request_id: str) -> Seen:
        seen = self.of_request(request_id)
        assert seen is not None, f"request {request_id} is on no lane"
        return seen

    def _admitted(self, event: events.Admitted, now_s: float) -> None:
        request = self.requests[event.request_id]
        self.cached[event.request_id] = event.cached_tokens
        seen = self.sequences.get(event.sequence_id)
        if seen is None:
            assert event.cached_tokens == 0, "something unknown was reused"
            seen = Seen(
                sequence_id=event.sequence_id,
                tenant=request.prompt.identity.tenant,
                tokens=[],
                frontier=0,
                has_current=True,
                checkpoint=None,
                checkpoint_kind=None,
                num_hits=-1,
                last_used_s=now_s,
                lane=None,
                entry=None,
                request=None,
                superseded_by=None,
                family=event.sequence_id,
            )
            self.sequences[event.sequence_id] = seen
        seen.tokens = list(request.prompt.tokens)
        seen.frontier = event.cached_tokens
        seen.has_current = True
        seen.num_hits += 1
        seen.last_used_s = now_s
        seen.lane, seen.entry = event.lane, None
        seen.request = request
        seen.superseded_by = None
        if self._new_fork is not None and not request.retain:
            self._new_fork.superseded_by = None
            self._new_fork.last_used_s = now_s
            self._stand_ins[event.request_id] = self._new_fork.sequence_id
        self._new_fork = None

    def _ended(self, event: events.Terminal, now_s: float) -> None:
        assert event.request_id not in self.terminals, f"{event.request_id} ended twice"
        self.terminals[event.request_id] = event
        seen = self.of_request(event.request_id)
        if seen is None:
            return
        stand_in = self.sequences.get(self._stand_ins.get(event.request_id))
        if stand_in is not None and stand_in.request is None:
            del self.sequences[seen.sequence_id]
            return
        if isinstance(event, events.Failed) or not self.requests[event.request_id].retain:
            seen.frontier = seen.checkpoint or 0
            seen.has_current = False
        seen.request = None
        seen.last_used_s = now_s
        del seen.tokens[seen.frontier :]
        if seen.reusable == 0:
            del self.sequences[seen.sequence_id]
