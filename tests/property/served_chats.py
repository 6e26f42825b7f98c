"""Chats and side requests on a scheduler without a runner, for properties of what stays kept.

Every answer is of the same token, which no prompt contains, so that answers need no model. A clock
of whole ticks decides which requests overlap; the scheduler sees ticks times ``tick_s``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kvreg_service.core import events
from kvreg_service.core.ids import RequestId
from kvreg_service.core.labels import StateKind
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import CachePolicy, Request, ResumePoint
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.policies import find_policy

IDENTITY = Identity(b"epoch", "tenant")
ANSWER, OPENER, SYSTEM = 1, 2, 3
THINK_TOKENS = 2
MAX_CONTEXT = 1 << 18
NUM_PAGES = 1 << 12


@dataclass(frozen=True)
class Ask:
    """One request: the next turn of a chat, or a side request without one.

    ``num_words`` is the length of its message. ``system_tokens`` precede the first message of a
    chat, and are the same in all chats.
    """

    chat: int | None
    num_words: int
    num_answer: int = 3
    system_tokens: int = 0
    is_tool_result: bool = False
    retain: bool = True


@dataclass
class Chat:
    """A conversation as its client repeats it: without the think opener of earlier turns."""

    history: list[int] = field(default_factory=list)
    boundary: int = 0


@dataclass
class Service:
    """A scheduler and its clients. Pages are never short."""

    layout: SlotLayout
    policy: str = "cost"
    chunk_tokens: int = 1 << 14
    tick_s: float = 1.0
    now: int = 0
    """The clock, in ticks."""
    plans: list[StepPlan] = field(default_factory=list)
    events: list[events.Event] = field(default_factory=list)
    chats: dict[int, Chat] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = SchedulerLimits(
            self.layout, NUM_PAGES, MAX_CONTEXT, self.chunk_tokens, 1 << 10, math.inf
        )
        self.scheduler = Scheduler(limits, find_policy(self.policy), CostModel())
        self._num_requests = 0
        self._num_words = 0

    def submit(self, ask: Ask) -> RequestId:
        """Submit a request, and note its answer in the history of its chat."""
        chat = Chat() if ask.chat is None else self.chats.setdefault(ask.chat, Chat())
        system = [] if chat.history else [SYSTEM] * ask.system_tokens
        message = self._words(ask.num_words)
        stable = [*chat.history, *system, *message, OPENER]
        kind = StateKind.ROUND if ask.is_tool_result else StateKind.TURN
        points = [ResumePoint(len(stable), kind)]
        if system:
            points.append(ResumePoint(len(system), StateKind.HEAD))
        self._num_requests += 1
        request = Request(
            request_id=RequestId(f"r{self._num_requests}"),
            prompt=TokenLedger(IDENTITY, [*stable, *[OPENER] * THINK_TOKENS]),
            max_tokens=ask.num_answer,
            arrival_s=self.now * self.tick_s,
            resume_points=tuple(points),
            cache_policy=CachePolicy(retain=ask.retain),
        )
        chat.history, chat.boundary = [*stable, *[ANSWER] * ask.num_answer], len(stable)
        self.scheduler.submit(request)
        return request.request_id

    def step(self) -> None:
        """Run one step, which takes one tick."""
        plan = self.scheduler.schedule(self.now * self.tick_s)
        sampled = {work.request_id: ANSWER for work in plan.work if work.samples}
        self.now += 1
        result = StepResult(sampled=sampled, is_prepared=True)
        self.events += self.scheduler.commit(plan, result, self.now * self.tick_s)
        self.plans.append(plan)

    def drain(self) -> None:
        """Step until nothing is left to do."""
        while self.scheduler.has_work:
            self.step()
        self.scheduler.check_invariants(self.now * self.tick_s)

    def ask(self, ask: Ask, pause: int = 0) -> int:
        """Serve one request after a pause in ticks; return its cached tokens."""
        self.now += pause
        request_id = self.submit(ask)
        self.drain()
        return self.cached_tokens()[request_id]

    def serve_history(self, history: Sequence[tuple[int, list[Ask]]]) -> None:
        """Serve groups of requests, each after a pause; those of a group arrive together."""
        for pause, group in history:
            self.now += pause
            for ask in group:
                self.submit(ask)
            self.drain()

    def cached_in_next_turn(self, chat: int) -> int:
        """Return the cached tokens that the next turn of a chat would have, which is not served."""
        prompt = TokenLedger(IDENTITY, [*self.chats[chat].history, 9, OPENER])
        request = Request(RequestId("planned"), prompt, max_tokens=1, arrival_s=0.0)
        plan = self.scheduler.planner.plan(request, self.now * self.tick_s)
        assert plan is not None, "a lane is idle"
        return plan.cached_tokens

    def cached_tokens(self) -> dict[RequestId, int]:
        """Return the cached tokens of every admitted request."""
        return {
            event.request_id: event.admission.cached_tokens
            for event in self.events
            if isinstance(event, events.Admitted)
        }

    def _words(self, count: int) -> list[int]:
        self._num_words += 1
        return [10 + self._num_words] + [9] * (count - 1)


SIZES = st.one_of(st.integers(1, 100), st.integers(1, 2000))
PAUSES = st.sampled_from([0, 0, 1, 50, 10_000])


def asks(num_chats: int, *, system_tokens: Sequence[int] = (0, 0, 70)) -> st.SearchStrategy[Ask]:
    """Return turns of a few chats, and side requests, of any size."""
    return st.builds(
        Ask,
        chat=st.one_of(st.none(), st.integers(0, num_chats - 1)),
        num_words=SIZES,
        num_answer=st.sampled_from([1, 3, 40]),
        system_tokens=st.sampled_from(list(system_tokens)),
        is_tool_result=st.booleans(),
        retain=st.sampled_from([True, True, True, False]),
    )


def histories(max_groups: int = 25) -> st.SearchStrategy[list[tuple[int, list[Ask]]]]:
    """Return groups of requests that arrive together, with the pause before each."""
    group = st.lists(asks(4), min_size=1, max_size=4, unique_by=lambda ask: ask.chat or id(ask))
    return st.lists(st.tuples(PAUSES, group), max_size=max_groups)


def layouts(min_entries: int = 1) -> st.SearchStrategy[SlotLayout]:
    """Return sizes of a small profile, in keep and in drop mode."""
    return st.builds(
        lambda lanes, entries, keep, anchors: SlotLayout(
            lanes, entries, keep or entries == 0, anchors
        ),
        st.integers(1, 3),
        st.integers(min_entries, 4),
        st.booleans(),
        st.sampled_from([0, 2]),
    )
