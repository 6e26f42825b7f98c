"""Drives the scheduler by request or by step, with a runner whose states are token prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from kvreg_service.core import events
from kvreg_service.core.errors import KvregError
from kvreg_service.core.ids import RequestId
from kvreg_service.core.labels import StateKind
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Admission, CachePolicy, Request, ResumePoint
from kvreg_service.core.scheduling.admission import AdmissionPlan
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.scheduling.step import StepPlan
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.policies import find_policy
from kvreg_service.testing.fake_runner import FakeRunner, Prefix

IDENTITY = Identity(epoch=b"epoch", tenant="tenant")
COST = CostModel(slot_bytes=1000, page_bytes=640)


def next_token(prefix: Prefix) -> int:
    """Return a token that depends on the whole prefix, so that a wrong state changes the output."""
    return 10 + hash(prefix) % 1000


@dataclass
class Outcome:
    """The events and step plans of one request."""

    events: list[events.Event]
    steps: list[StepPlan]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def admitted(self) -> events.Admitted:
        (admitted,) = self.of(events.Admitted)
        return admitted

    @property
    def admission(self) -> Admission:
        return self.admitted.admission

    @property
    def terminal(self) -> events.Terminal:
        (terminal,) = self.of(events.Terminal)
        return terminal

    @property
    def cached(self) -> int:
        return self.admission.cached_tokens

    @property
    def answer(self) -> list[int]:
        return [event.token for event in self.of(events.TokenSampled)]


@dataclass
class Core:
    """A scheduler and a runner.

    After every step all invariants are checked, and that every kept state is as it was captured.
    """

    lanes: int = 1
    entries: int = 0
    keep_current: bool = True
    policy: str = "cost"
    prefix_reuse: bool = True
    anchors: int = 0
    num_pages: int = 64
    max_context_tokens: int = 2048
    chunk_tokens: int = 512
    queue_limit: int = 64
    queue_timeout_s: float = 60.0
    now_s: float = 0.0
    log: list[events.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layout = SlotLayout(self.lanes, self.entries, self.keep_current, self.anchors)
        limits = SchedulerLimits(
            self.layout,
            self.num_pages,
            self.max_context_tokens,
            self.chunk_tokens,
            self.queue_limit,
            self.queue_timeout_s,
        )
        self.scheduler = Scheduler(
            limits, find_policy(self.policy), COST, prefix_reuse=self.prefix_reuse
        )
        self.runner = FakeRunner(self.layout.num_slots, self.num_pages, next_token)
        self._num_requests = 0

    def request(
        self,
        prompt: Sequence[int],
        *,
        boundary: int | None = None,
        kind: StateKind = StateKind.TURN,
        heads: Iterable[int] = (),
        marks_heads: bool = False,
        branch_points: Iterable[int] = (),
        points: Iterable[ResumePoint] = (),
        max_tokens: int = 4,
        request_id: str | None = None,
        identity: Identity = IDENTITY,
        **options: Any,
    ) -> Request:
        """Return a request that arrives now, with a boundary of ``kind`` and further points."""
        self._num_requests += 1
        names = [one.name for one in fields(CachePolicy) if one.name in options]
        policy = {name: options.pop(name) for name in names}
        points = [*points, *(ResumePoint(one, StateKind.HEAD, marks_heads) for one in heads)]
        points += [ResumePoint(one, StateKind.BRANCH_POINT) for one in branch_points]
        if boundary is not None:
            points.append(ResumePoint(boundary, kind))
        return Request(
            request_id=RequestId(request_id or f"r{self._num_requests}"),
            prompt=TokenLedger(identity, prompt),
            max_tokens=max_tokens,
            arrival_s=self.now_s,
            resume_points=tuple(points),
            cache_policy=CachePolicy(**policy),
            **options,
        )

    def submit(self, prompt: Sequence[int], **options: Any) -> RequestId:
        request = self.request(prompt, **options)
        self.scheduler.submit(request)
        return request.request_id

    def step(
        self, fail: Iterable[RequestId] = (), error: KvregError | None = None
    ) -> tuple[StepPlan, list[events.Event]]:
        plan = self.scheduler.schedule(self.now_s)
        self.runner.fail_next = dict.fromkeys(fail, error or KvregError("injected"))
        happened = self.scheduler.commit(plan, self.runner.execute(plan), self.now_s)
        self.check()
        self.log += happened
        return plan, happened

    def check(self) -> None:
        """Check all invariants, and the content of every kept state and of its pages."""
        self.scheduler.check_invariants(self.now_s)
        for state in self.scheduler.store:
            tokens = tuple(state.ledger.tokens[: state.position])
            assert self.runner.state(state.slot) == tokens, f"state {state.state_id} has changed"
            assert self.runner.holds(state.pages, state.slot), f"pages of {state.state_id} changed"

    def drain(self) -> Outcome:
        """Step until the scheduler has no work left, then advance the clock by one second."""
        outcome = Outcome([], [])
        while self.scheduler.has_work:
            plan, happened = self.step()
            outcome.steps.append(plan)
            outcome.events += happened
        self.now_s += 1.0
        return outcome

    def run(self, prompt: Sequence[int], **options: Any) -> Outcome:
        """Serve one request from arrival to completion."""
        self.submit(prompt, **options)
        return self.drain()

    def plan(self, request: Request) -> AdmissionPlan | None:
        """Return the admission plan of a request without executing it."""
        return self.scheduler.planner.plan(request, self.now_s)

    def states(self) -> list[KeptState]:
        """Return all kept states, the first kept one first."""
        return sorted(self.scheduler.store, key=lambda state: state.state_id)

    def at(self, position: int) -> KeptState:
        """Return the only state at a position."""
        (state,) = (one for one in self.states() if one.position == position)
        return state

    def kept(self) -> list[tuple[str, int]]:
        """Return the kind and the position of every kept state, the first kept one first."""
        return [(one.kind.value, one.position) for one in self.states()]

    def sessions(self) -> list[Session]:
        """Return the sessions that have a kept state, the oldest first."""
        return [one for one in self.scheduler.store.sessions if one.states]

    def value(self, state: KeptState) -> float:
        return self.scheduler.eviction.value(state)


@pytest.fixture
def make_core() -> Callable[..., Core]:
    return Core
