"""Clients, a scheduler, a runner that notices wrong moves, and an observer of all of them.

The machine plays random traffic step by step. After every step the scheduler's bookkeeping is
compared with the observer's, the runner's states and pages with both, every answer with that of a
cold run, and every admission, eviction, anchor and pin with its oracle.
"""

from __future__ import annotations

from typing import Any

from admission_oracle import check_admission
from anchor_oracle import AnchorOracle
from conversations import Conversation, Prompt, user_turn, words
from event_mirror import Mirror, ends_first
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from ranking import Profile, Ranking
from seen import Seen
from share_oracle import ShareOracle
from step_audit import StepAudit

from kvreg_service.core import events
from kvreg_service.core.admission import AdmissionRules
from kvreg_service.core.errors import (
    KvregError,
    Overloaded,
    PinRefused,
    QueueTimeout,
    SessionBusy,
    SessionNotFound,
)
from kvreg_service.core.events import EvictionReason
from kvreg_service.core.identity import Identity
from kvreg_service.core.ids import AnchorId, RequestId, SequenceId
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.pages import PageState
from kvreg_service.core.policies import POLICY_NAMES, build_policy
from kvreg_service.core.quota import Quota
from kvreg_service.core.request import Head, Request
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
CARE = ["pin", "pin", "unpin", "quota", "no quota"]
SYSTEM_TOKENS = (0, 70, 140)
PLAIN: dict[str, Any] = {}
# What a request may ask for besides an answer; most ask for nothing.
EXTRAS = [
    *[PLAIN] * 6,
    {"ttl_s": 3.0},
    {"ttl_s": 100.0, "priority": 1},
    {"priority": -1},
    {"priority": 2},
    {"may_reuse": False},
]
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
        anchors=st.integers(0, 2),
        keep=st.booleans(),
        exchange=USUALLY,
        policy=st.sampled_from(["cost", "cost", "cost", "cost", *POLICY_NAMES]),
        spare_pages=st.sampled_from([0, 2, 8, 30, 30]),
        chunk=st.sampled_from([16, 64, 100, 512]),
        queue_limit=st.sampled_from([2, 8]),
        quota=st.sampled_from([None, None, 0, 1, 2]),
    )
    def start(
        self,
        lanes,
        entries,
        anchors,
        keep,
        exchange,
        policy,
        spare_pages,
        chunk,
        queue_limit,
        quota,
    ):
        keep = keep or entries == 0
        cost = CostModel(slot_bytes=1000, page_bytes=640)
        eviction = build_policy(policy, cost)
        profile = Profile(lanes, entries, anchors, keep, exchange, eviction, MAX_CONTEXT)
        self.profile = profile
        self.layout = SlotLayout(lanes, entries, keep, anchors)
        self.num_pages = CONTEXT_PAGES + spare_pages
        limits = SchedulerLimits(
            self.layout, self.num_pages, MAX_CONTEXT, chunk, queue_limit, queue_timeout_s=60.0
        )
        self.scheduler = Scheduler(limits, AdmissionRules(eviction, exchange), cost)
        self.runner = FakeRunner(self.layout.num_slots, self.num_pages, next_token)
        self.mirror = Mirror(keep, self.num_pages, self._check_victim, self._lend)
        self.shares = ShareOracle(self.mirror, profile)
        first_slot = self.layout.anchor(AnchorId(0)) if anchors else self.layout.num_slots
        self.anchors = AnchorOracle(self.mirror, profile, first_slot)
        self.first_anchor_slot = first_slot
        self.audit = StepAudit(self.scheduler, self.runner, self.mirror)
        self.clients = [
            Conversation(str(index), words("system", size))
            for index, size in enumerate(SYSTEM_TOKENS)
        ]
        self.waiting: dict[str, Conversation] = {}
        self.failing: set[str] = set()
        self.fails_next_moves = self.fails_next_capture = False
        self.now_s = 1000.0
        # The third client is of the other tenant, and keeps its own then.
        self.has_two_tenants = quota is not None
        if quota is not None:
            self.care("quota", quota)

    # What clients do.

    def submit(
        self,
        prompt: Prompt,
        then: int,
        max_tokens=7,
        retain=True,
        tenant="mine",
        kind="turn",
        heads=(),
        extra=PLAIN,
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
            heads=heads,
            **extra,
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

    def submit_main(self, which: int, prompt: Prompt, then: int, **options) -> None:
        client = self.clients[which]
        self.waiting = {i: c for i, c in self.waiting.items() if c is not client}
        self.waiting[f"r{len(self.mirror.requests)}"] = client
        if self.submit_of(which, prompt, then, **options) is None:
            client.restart()

    def submit_of(self, which: int, prompt: Prompt, then: int, **options) -> RequestId | None:
        """Submit for one of the clients: its tenant, and the head that its system prompt is."""
        heads = (Head(SYSTEM_TOKENS[which]),) if SYSTEM_TOKENS[which] else ()
        return self.submit(prompt, then, tenant=self._tenant(which), heads=heads, **options)

    def _tenant(self, which: int) -> str:
        return "theirs" if which == 2 and self.has_two_tenants else "mine"

    @rule(
        which=CONVERSATIONS,
        count=st.integers(1, 3),
        num_words=NUM_WORDS,
        think=THINK,
        max_tokens=MAX_TOKENS,
        bounded=USUALLY,
        retain=USUALLY,
        then=THEN,
        extra=st.sampled_from(EXTRAS),
    )
    def next_turns(self, which, count, num_words, think, max_tokens, bounded, retain, then, extra):
        client = self.clients[which]
        for _ in range(count):
            prompt = client.next_turn(num_words, think)
            if not bounded:
                prompt = Prompt(prompt.tokens, None)
            options = {"max_tokens": max_tokens, "retain": retain, "extra": extra}
            self.submit_main(which, prompt, then, **options)

    @rule(which=CONVERSATIONS, back=st.integers(0, 2), num_words=NUM_WORDS, think=THINK, then=THEN)
    def edit_an_earlier_turn(self, which, back, num_words, think, then):
        self.submit_main(which, self.clients[which].edited(back, num_words, think), then)

    @rule(which=CONVERSATIONS, retain=USUALLY, max_tokens=MAX_TOKENS, then=THEN)
    def ask_the_same_again(self, which, retain, max_tokens, then):
        client = self.clients[which]
        if client.last is not None:
            self.submit_main(which, client.last, then, retain=retain, max_tokens=max_tokens)

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
            options = {"max_tokens": max_tokens, "retain": retain, "kind": "response"}
            self.submit_of(which, prompt, then, **options)

    @rule(which=CONVERSATIONS, num_words=NUM_WORDS, think=THINK, retain=USUALLY, then=THEN)
    def side_request_on_the_history(self, which, num_words, think, retain, then):
        self.submit_of(which, self.clients[which].postfix(num_words, think), then, retain=retain)

    @rule(
        number=st.integers(0, 5),
        system=st.sampled_from(["system", "system", "other", "third"]),
        which=CONVERSATIONS,
        marked=st.sampled_from([False, False, False, True]),
        retain=USUALLY,
        then=THEN,
        extra=st.sampled_from(EXTRAS),
    )
    def begin_with_a_shared_head(self, number, system, which, marked, retain, then, extra):
        """A sub-agent: a head that others have too, and a question of its own."""
        prompt = user_turn(words(system, 140), words(("sub", number), 20), 1)
        heads = (Head(70), Head(140, marked))
        tenant = self._tenant(which)
        self.submit(prompt, then, 2, retain, tenant, heads=heads, extra=extra)

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
        """A client leaves, the next step on a request fails, something is dropped, time passes."""
        open_ids = [i for i in self.mirror.requests if i not in self.mirror.terminals]
        match what:
            case "drop":
                self.take(self._drop(index))
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
        event = happened[-1]
        assert isinstance(event, events.Cancelled)
        assert event.completion_tokens == len(self.mirror.outputs[request_id])
        self.take(happened)

    @rule(
        what=st.sampled_from(CARE),
        index=st.integers(0, 20),
        seconds=st.sampled_from([2.0, 30.0, 500.0]),
    )
    def care(self, what, index, seconds=30.0):
        """An operator pins something or lets it go, or gives the other tenant another quota."""
        match what:
            case "pin" if self.mirror.kept():
                self._pin(self._pick(index), seconds)
            case "unpin" if self.mirror.kept():
                seen = self._pick(index)
                self.scheduler.unpin(SequenceId(seen.sequence_id))
                seen.pinned_until_s = None
            case "quota" if self.has_two_tenants:
                spare = self.num_pages - CONTEXT_PAGES
                entries = min(index % 4, self.profile.entries)
                pages = min((0, 3, 6, 12)[index % 4], spare)
                self._set_quotas({"theirs": Quota(entries, pages, min(1, self.profile.anchors))})
            case "no quota":
                self._set_quotas({})

    def _pick(self, index: int) -> Seen:
        kept = sorted(self.mirror.kept(), key=lambda seen: seen.sequence_id)
        return kept[index % len(kept)]

    def _pin(self, seen: Seen, seconds: float) -> None:
        may_pin = self.shares.may_pin(seen, self.now_s)
        try:
            self.scheduler.pin(SequenceId(seen.sequence_id), seconds, self.now_s)
        except PinRefused:
            assert not may_pin, "a pin that leaves enough was refused"
            return
        assert may_pin, "a pin leaves too little"
        seen.pinned_until_s = self.now_s + seconds

    def _set_quotas(self, quotas: dict[str, Quota]) -> None:
        happened = self.scheduler.set_quotas(quotas, self.now_s)
        self.mirror.quotas = quotas
        for seen in self.mirror.kept():
            seen.is_lent = False
        self.take(happened)
        for tenant in quotas:
            self.shares.lend(tenant, self.now_s)

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
            bound += 3 + len(request.heads) + request.prompt_tokens // chunk + answer
        num_steps = 0
        while self.scheduler.has_work:
            self.step()
            num_steps += 1
            assert num_steps <= bound, "somebody starves"

    def step(self, dropped: int | None = None) -> None:
        commit_s = self.now_s + 0.25
        plan = self.scheduler.schedule(self.now_s)
        num_free_after = self.scheduler.holdings.pages.num_free
        num_planned = len(self.scheduler.holdings.events)
        self.audit.check_plan(plan)
        self._inject(plan)
        result = self.runner.execute(plan)
        # An operator may drop something while the step is computed. The events of the plan on its
        # way are reported later, although they came first.
        dropped_then = [] if dropped is None else self._drop(dropped)
        happened = self.scheduler.commit(plan, result, commit_s)
        self._check_planned(plan, happened[:num_planned], num_free_after)
        self._check_failures(happened, result.failed)
        self.take(dropped_then)
        self.mirror.apply_result(
            plan, result, happened[num_planned:], self.first_anchor_slot, self.now_s, commit_s
        )
        self.now_s = commit_s
        self._check_outputs(happened)
        self.audit.check_bookkeeping(commit_s)
        self.shares.check(commit_s)

    def _check_planned(
        self, plan: StepPlan, happened: list[events.Event], num_free_after: int
    ) -> None:
        """Follow what `schedule` did, and ask at each point whether it had to."""
        self.mirror.end_pins(self.now_s)
        first = next((i for i, e in enumerate(happened) if not _is_over(e)), len(happened))
        self.mirror.apply_planned(happened[:first], self.now_s)
        for seen in self.mirror.kept():
            assert not self._is_expired(seen), "it is kept beyond its time"
        happened = happened[first:]
        admitted = [e.request_id for e in happened if isinstance(e, events.Admitted)]
        next_request = self.shares.next_request(self.now_s)
        assert admitted == ([next_request] if next_request is not None else [])
        num_free = self.mirror.num_free_pages
        check_admission(self.mirror, self.profile, happened, num_free, self.now_s)
        self._check_page_evictions(happened, num_free_after)
        self.anchors.note_admission(happened)
        self.anchors.begin_step(plan)
        self.mirror.apply_planned(happened, self.now_s)
        self.anchors.check_plan(plan, happened, self.now_s)

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
        for event in ends_first(happened):
            self.mirror.apply(event, self.now_s)
        self.mirror.settle(self.now_s)

    def _drop(self, index: int) -> list[events.Event]:
        if not self.mirror.kept():
            return []
        seen = self._pick(index)
        try:
            return self.scheduler.drop_sequence(SequenceId(seen.sequence_id), seen.tenant)
        except (SessionBusy, SessionNotFound):
            # The step on its way has just taken it.
            return []

    # What must hold.

    def _lend(self, tenant: str, now_s: float) -> None:
        self.shares.lend(tenant, now_s)

    def _is_expired(self, seen: Seen) -> bool:
        is_over = seen.expires_s is not None and seen.expires_s <= self.now_s
        return is_over and not seen.is_pinned(self.now_s)

    def _check_victim(self, victim: Seen, reason: EvictionReason, now_s: float) -> None:
        if reason not in (EvictionReason.REQUESTED, EvictionReason.FAILED):
            assert not victim.is_pinned(now_s), "what is pinned was given up"
        match reason:
            case EvictionReason.PAGES_NEEDED:
                assert victim in self._first_for_pages(now_s)
            case EvictionReason.EXPIRED:
                assert self._is_expired(victim)
            case EvictionReason.QUOTA:
                assert self.shares.is_over(victim.tenant)
            case EvictionReason.ANCHOR_NEEDED:
                self.anchors.check_victim(victim, now_s)

    def _first_for_pages(self, now_s: float) -> list[Seen | None]:
        """Who goes first for pages of any tenant that runs: who frees any, before all others."""
        ranking, kept = Ranking(self.mirror, self.profile, now_s), self.mirror.kept()
        freeing = [seen for seen in kept if self.mirror.frees_any(seen)]
        tenants = {seen.tenant for seen in self.mirror.running()}
        return [ranking.first(freeing, one) or ranking.first(kept, one) for one in tenants]

    def _check_page_evictions(self, happened: list[events.Event], num_free_after: int) -> None:
        """No more is taken from kept sequences than is needed."""
        taken = [e for e in happened if isinstance(e, events.Evicted)]
        if taken and taken[-1].reason is EvictionReason.PAGES_NEEDED:
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
        for seen in self.mirror.kept():
            self.take(self.scheduler.drop_sequence(SequenceId(seen.sequence_id)))
        self.scheduler.check_invariants(self.now_s)
        assert not self.mirror.sequences
        assert self.scheduler.holdings.pages.count()[PageState.FREE] == self.num_pages


def _is_over(event: events.Event) -> bool:
    """Whether a step begins with it: what has expired, and who has waited too long."""
    if isinstance(event, events.Evicted):
        return event.reason is EvictionReason.EXPIRED
    return isinstance(event, events.Failed)
