"""Clients, a scheduler, a runner that notices wrong moves, and an observer of all of them.

The machine plays random traffic step by step. After every step the scheduler's bookkeeping is
compared with the observer's, the runner's states and pages with both, every answer with that of a
cold run, and every admission with the oracle.
"""

from __future__ import annotations

from collections import Counter

from admission_oracle import Profile, Ranking, check_admission
from conversations import Conversation, Prompt, user_turn, words
from event_mirror import Mirror, Seen
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from step_audit import StepAudit

from kvreg_service.core import events
from kvreg_service.core.admission import AdmissionRules
from kvreg_service.core.errors import KvregError, NotFound, Overloaded, QueueTimeout
from kvreg_service.core.events import EvictionReason
from kvreg_service.core.identity import Identity
from kvreg_service.core.ids import EntryId, RequestId
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.pages import PageState
from kvreg_service.core.policies import build_policy
from kvreg_service.core.request import Request
from kvreg_service.core.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.sequence import CheckpointKind
from kvreg_service.core.slots import SlotLayout
from kvreg_service.core.step import StepPlan
from kvreg_service.core.value import CostModel
from kvreg_service.fake_runner import FakeRunner, Prefix

MAX_CONTEXT = 512
CONTEXT_PAGES = MAX_CONTEXT // 64
STOP_TOKENS = frozenset({4, 5})

CONVERSATIONS = st.integers(0, 2)
NUM_WORDS = st.sampled_from([1, 3, 20, 40, 62, 63, 64, 65])
THINK = st.sampled_from([0, 1, 4])
MAX_TOKENS = st.sampled_from([1, 2, 7, 20, 10_000])
USUALLY = st.sampled_from([True, True, True, True, False])
TROUBLE = ["cancel", "fail moves", "fail work", "fail capture", "drop", "wait"]
UNTIL_IDLE = 1000
# How many steps follow a request before anything else happens.
THEN = st.sampled_from([UNTIL_IDLE, UNTIL_IDLE, UNTIL_IDLE, 3, 0])


def next_token(prefix: Prefix) -> int:
    """Depend on the whole prefix; one token in sixteen ends the answer."""
    token = hash(prefix) % 100
    return 4 + token % 2 if token < 3 else 10 + token % 90


class SchedulerMachine(RuleBasedStateMachine):
    """Clients, a scheduler, a runner that notices wrong moves, and an observer."""

    @initialize(
        lanes=st.sampled_from([1, 1, 2, 3]),
        entries=st.sampled_from([0, 1, 1, 2, 2, 3, 3, 4, 4]),
        keep=st.booleans(),
        exchange=USUALLY,
        policy=st.sampled_from(["cost", "cost", "none"]),
        spare_pages=st.sampled_from([0, 2, 8, 30, 30]),
        chunk=st.sampled_from([16, 64, 100, 512]),
        queue_limit=st.sampled_from([2, 8]),
    )
    def start(self, lanes, entries, keep, exchange, policy, spare_pages, chunk, queue_limit):
        keep = keep or entries == 0
        cost = CostModel(slot_bytes=1000, page_bytes=640)
        value_policy = build_policy(policy, cost)
        self.profile = Profile(lanes, entries, keep, exchange, value_policy)
        self.layout = SlotLayout(lanes, entries, keep)
        self.num_pages = CONTEXT_PAGES + spare_pages
        limits = SchedulerLimits(
            self.layout, self.num_pages, MAX_CONTEXT, chunk, queue_limit, queue_timeout_s=60.0
        )
        rules = AdmissionRules(value_policy, exchange)
        self.scheduler = Scheduler(limits, rules, cost)
        self.runner = FakeRunner(self.layout.num_slots, self.num_pages, next_token)
        self.mirror = Mirror(keep, self._check_victim)
        self.audit = StepAudit(self.scheduler, self.runner, self.mirror)
        self.clients = [
            Conversation(str(index), words("system", size))
            for index, size in enumerate((0, 30, 70))
        ]
        self.waiting: dict[str, Conversation] = {}
        self.failing: set[str] = set()
        self.fails_next_moves = self.fails_next_capture = False
        self.now_s = 1000.0

    # What clients do.

    def submit(
        self, prompt: Prompt, then: int, max_tokens=7, retain=True, tenant="mine", kind="turn"
    ):
        request = Request(
            request_id=RequestId(f"r{len(self.mirror.requests)}"),
            prompt=TokenLedger(Identity(b"epoch", tenant), prompt.tokens),
            max_tokens=max_tokens,
            arrival_s=self.now_s,
            stop_token_ids=STOP_TOKENS,
            boundary=prompt.boundary,
            boundary_kind=CheckpointKind(kind),
            retain=retain,
        )
        if not 0 < request.prompt_tokens < MAX_CONTEXT:
            return None
        try:
            self.scheduler.submit(request)
        except Overloaded:
            num_idle = self.layout.lanes - self.scheduler.num_running
            limit = self.scheduler.limits.queue_limit
            # An attach that failed is queued again, whatever the limit.
            assert self.scheduler.queue_length - num_idle >= limit
            return None
        self.mirror.submitted(request)
        self.run_steps(then)
        return request.request_id

    def submit_main(self, client: Conversation, prompt: Prompt, then: int, **options) -> None:
        self.waiting = {i: c for i, c in self.waiting.items() if c is not client}
        self.waiting[f"r{len(self.mirror.requests)}"] = client
        if self.submit(prompt, then, **options) is None:
            client.restart()

    @rule(
        which=CONVERSATIONS,
        count=st.integers(1, 3),
        num_words=NUM_WORDS,
        think=THINK,
        max_tokens=MAX_TOKENS,
        bounded=USUALLY,
        retain=USUALLY,
        then=THEN,
    )
    def next_turns(self, which, count, num_words, think, max_tokens, bounded, retain, then):
        client = self.clients[which]
        for _ in range(count):
            prompt = client.next_turn(num_words, think)
            if not bounded:
                prompt = Prompt(prompt.tokens, None)
            self.submit_main(client, prompt, then, max_tokens=max_tokens, retain=retain)

    @rule(which=CONVERSATIONS, back=st.integers(0, 2), num_words=NUM_WORDS, think=THINK, then=THEN)
    def edit_an_earlier_turn(self, which, back, num_words, think, then):
        client = self.clients[which]
        self.submit_main(client, client.edited(back, num_words, think), then)

    @rule(which=CONVERSATIONS, retain=USUALLY, max_tokens=MAX_TOKENS, then=THEN)
    def ask_the_same_again(self, which, retain, max_tokens, then):
        client = self.clients[which]
        if client.last is not None:
            self.submit_main(client, client.last, then, retain=retain, max_tokens=max_tokens)

    @rule(
        which=CONVERSATIONS,
        num_words=st.sampled_from([0, 1, 70]),
        bounded=st.booleans(),
        retain=USUALLY,
        max_tokens=MAX_TOKENS,
        then=THEN,
    )
    def continue_the_answer(self, which, num_words, bounded, retain, max_tokens, then):
        prompt = self.clients[which].continued(num_words)
        if prompt is not None:
            if not bounded:
                prompt = Prompt(prompt.tokens, None)
            self.submit(prompt, then, max_tokens, retain, kind="response")

    @rule(which=CONVERSATIONS, num_words=NUM_WORDS, think=THINK, retain=USUALLY, then=THEN)
    def side_request_on_the_history(self, which, num_words, think, retain, then):
        self.submit(self.clients[which].postfix(num_words, think), then, retain=retain)

    @rule(
        which=st.integers(0, 3),
        num_words=st.sampled_from([20, 150]),
        max_tokens=MAX_TOKENS,
        retain=USUALLY,
        then=THEN,
    )
    def unrelated_side_request(self, which, num_words, max_tokens, retain, then):
        prompt = user_turn([], words(("side", which), num_words), 4)
        self.submit(prompt, then, max_tokens, retain)

    @rule(
        which=CONVERSATIONS,
        change=st.sampled_from(["cut", "mutate", "tenant"]),
        position=st.integers(0, MAX_CONTEXT),
        bounded=st.booleans(),
        then=THEN,
    )
    def almost_the_same(self, which, change, position, bounded, then):
        client = self.clients[which]
        if client.last is None:
            return
        tokens = client.last.tokens + (client.answer or [])
        if change == "cut":
            tokens = tokens[: len(tokens) - position % 70]
        elif change == "mutate":
            tokens[position % len(tokens)] = 9
        boundary = position % len(tokens) if tokens and bounded else None
        tenant = "theirs" if change == "tenant" else "mine"
        self.submit(Prompt(tokens, boundary), then, tenant=tenant)

    @rule(
        what=st.sampled_from(TROUBLE),
        index=st.integers(0, 20),
        seconds=st.sampled_from([0.5, 30.0, 61.0, 900.0]),
    )
    def trouble(self, what, index, seconds):
        """A client leaves, the next step on a request fails, an entry is dropped, time passes."""
        open_ids = [i for i in self.mirror.requests if i not in self.mirror.terminals]
        match what:
            case "drop":
                self.take(self._drop(index % 4))
            case "wait":
                self.now_s += seconds
            case "cancel" if open_ids:
                self._cancel(open_ids[index % len(open_ids)])
            case "fail moves":
                self.fails_next_moves = True
            case "fail capture":
                self.fails_next_capture = True
            case "fail work" if open_ids:
                self.failing.add(open_ids[index % len(open_ids)])

    def _cancel(self, request_id: str) -> None:
        happened = self.scheduler.cancel(RequestId(request_id), self.now_s)
        (event,) = happened
        assert isinstance(event, events.Cancelled)
        assert event.completion_tokens == len(self.mirror.outputs[request_id])
        self.take(happened)

    # What the engine does.

    @rule(count=st.sampled_from([1, 2, 3, 10]), dropped=st.sampled_from([None, None, None, 0]))
    def steps(self, count, dropped):
        self.run_steps(count, dropped)

    def run_steps(self, count: int, dropped: int | None = None) -> None:
        if count == UNTIL_IDLE:
            self.drain()
            return
        for _ in range(count):
            if not self.scheduler.has_work:
                break
            self.step(dropped)
            dropped = None

    def drain(self) -> None:
        # Each open request is waited for, prefilled in chunks, and decodes token by token.
        open_ids = [i for i in self.mirror.requests if i not in self.mirror.terminals]
        bound = 0
        for request_id in open_ids:
            request = self.mirror.requests[request_id]
            chunk = self.scheduler.limits.prefill_chunk_tokens
            answer = min(request.max_tokens, MAX_CONTEXT - request.prompt_tokens)
            bound += 3 + request.prompt_tokens // chunk + answer
        num_steps = 0
        while self.scheduler.has_work:
            self.step()
            num_steps += 1
            assert num_steps <= bound, "somebody starves"

    def step(self, dropped: int | None = None) -> None:
        commit_s = self.now_s + 0.25
        num_free_before = self.scheduler.holdings.pages.num_free
        plan = self.scheduler.schedule(self.now_s)
        num_free_after = self.scheduler.holdings.pages.num_free
        self.audit.check_plan(plan)
        self._inject(plan)
        result = self.runner.execute(plan)
        # An operator may drop an entry while the step is computed. The events of the plan on its
        # way are reported later, although they came first.
        dropped_then = [] if dropped is None else self._drop(dropped)
        happened = self.scheduler.commit(plan, result, commit_s) + dropped_then
        check_admission(self.mirror, self.profile, happened, num_free_before, self.now_s)
        self._check_page_evictions(happened, num_free_after)
        self._check_failures(happened, result.failed)
        self.mirror.apply_step(plan, result, happened, self.now_s, commit_s)
        self.now_s = commit_s
        self._check_outputs(happened)
        self.audit.check_bookkeeping()

    def _inject(self, plan: StepPlan) -> None:
        failing = self.failing & {work.request_id for work in plan.work}
        self.failing -= failing
        captures = {work.request_id for work in plan.work if work.capture_to is not None}
        if self.fails_next_capture and captures:
            failing |= captures
            self.fails_next_capture = False
        self.runner.fails_moves = self.fails_next_moves and plan.preparation is not None
        if self.runner.fails_moves:
            failing = {plan.preparation.request_id}
            self.fails_next_moves = False
        self.runner.fail_next = {RequestId(i): KvregError("injected") for i in failing}

    def take(self, happened: list[events.Event]) -> None:
        for event in happened:
            self.mirror.apply(event, self.now_s)

    def _drop(self, index: int) -> list[events.Event]:
        try:
            return self.scheduler.drop_entry(EntryId(index))
        except NotFound:
            return []

    # What must hold.

    def _check_victim(self, victim: Seen, reason: EvictionReason, now_s: float) -> None:
        if reason is EvictionReason.PAGES_NEEDED:
            ranking = Ranking(self.mirror, self.profile, now_s)
            # One that shares its pages with a relative may free none, and stays while others do.
            families = Counter(seen.family for seen in self.mirror.sequences.values())
            alone = [seen for seen in self.mirror.kept() if families[seen.family] == 1]
            ranking.assert_first(victim, alone)

    def _check_page_evictions(self, happened: list[events.Event], num_free_after: int) -> None:
        """No more is taken from kept sequences than is needed."""
        taken = [
            e
            for e in happened
            if isinstance(e, events.Evicted) and e.reason is EvictionReason.PAGES_NEEDED
        ]
        if taken:
            assert num_free_after < max(1, (taken[-1].tokens + 63) // 64)

    def _check_failures(self, happened, injected) -> None:
        for event in happened:
            if isinstance(event, events.Failed) and not isinstance(event.error, QueueTimeout):
                assert event.request_id in injected, event.error

    def _check_outputs(self, happened: list[events.Event]) -> None:
        for event in happened:
            if isinstance(event, events.TokenSampled):
                request = self.mirror.requests[event.request_id]
                output = self.mirror.outputs[event.request_id]
                cold = next_token((*request.prompt.tokens, *output[:-1]))
                assert event.token == cold, "the answer differs from that of a cold run"
            if isinstance(event, events.Finished):
                self._check_finished(event)

    def _check_finished(self, event: events.Finished) -> None:
        request = self.mirror.requests[event.request_id]
        output = self.mirror.outputs[event.request_id]
        cached, computed = (
            self.mirror.cached[event.request_id],
            self.mirror.computed[event.request_id],
        )
        assert cached + computed == request.prompt_tokens
        assert event.completion_tokens == len(output) <= request.max_tokens
        assert request.prompt_tokens + len(output) <= MAX_CONTEXT
        stopped = output[-1] in STOP_TOKENS
        assert event.reason.value == ("stop" if stopped else "length")
        client = self.waiting.pop(event.request_id, None)
        if client is not None:
            client.answer = output

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.drain()
        assert set(self.mirror.terminals) == set(self.mirror.requests)
        placement = self.scheduler.holdings
        for entry, _ in list(placement.registry):
            self.take(self.scheduler.drop_entry(entry))
        for lane in placement.lanes:
            if lane.sequence is not None:
                placement.give_up_lane(lane, EvictionReason.REQUESTED)
        self.scheduler.check_invariants()
        assert placement.pages.count()[PageState.FREE] == self.num_pages
