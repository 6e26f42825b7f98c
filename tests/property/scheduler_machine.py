"""Random traffic and administration for a scheduler that is checked after every step."""

from __future__ import annotations

from answers import STOP_TOKENS
from conversations import Conversation, Prompt, user_turn, words
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from observed_scheduler import ObservedScheduler
from ranking import Profile
from traffic import (
    ADMIN_ACTIONS,
    CHANGES,
    CONTEXT_PAGES,
    CONVERSATIONS,
    EXTRAS,
    FAULTS,
    MAX_CONTEXT,
    MAX_TOKENS,
    MINE,
    NUM_WORDS,
    OLD,
    PLAIN,
    SYSTEM_TOKENS,
    THEIRS,
    THEN,
    THINK,
    UNTIL_IDLE,
    USUALLY,
)

from kvreg_service.core.ids import RequestId
from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import CachePolicy, Request, ResumePoint
from kvreg_service.core.states.policies import POLICIES
from kvreg_service.core.states.quota import Quota


class SchedulerMachine(RuleBasedStateMachine):
    """Three conversations, side requests, faults, and administration: pins and quotas."""

    @initialize(
        lanes=st.sampled_from([1, 1, 2, 3]),
        entries=st.sampled_from([0, 1, 1, 2, 2, 3, 3, 4, 4]),
        anchors=st.integers(0, 2),
        keep=st.booleans(),
        policy=st.sampled_from(["cost", "cost", "cost", "cost", *POLICIES]),
        spare_pages=st.sampled_from([0, 2, 8, 30, 30]),
        chunk=st.sampled_from([16, 64, 100, 512]),
        queue_limit=st.sampled_from([2, 8]),
        quota=st.sampled_from([None, None, 0, 1, 2]),
    )
    def start(self, lanes, entries, anchors, keep, policy, spare_pages, chunk, queue_limit, quota):
        keep = keep or entries == 0
        profile = Profile(lanes, entries, anchors, keep, policy, MAX_CONTEXT)
        num_pages = CONTEXT_PAGES + spare_pages
        self.engine = ObservedScheduler(profile, num_pages, chunk, queue_limit, self.save_answer)
        self.spare_pages = spare_pages
        self.clients = [
            Conversation(str(index), words("system", size))
            for index, size in enumerate(SYSTEM_TOKENS)
        ]
        self.waiting: dict[str, Conversation] = {}
        # With two tenants, the third client belongs to the second, which has a quota.
        self.has_two_tenants = quota is not None
        if quota is not None:
            self.administer("quota", quota)

    # Requests of clients.

    def submit(
        self,
        prompt: Prompt,
        then: int,
        max_tokens=7,
        retain=True,
        identity=MINE,
        kind=StateKind.TURN,
        heads=(),
        extra=PLAIN,
    ):
        points = [
            ResumePoint(position, point_kind)
            for position, point_kind in (
                (prompt.boundary, kind),
                (prompt.round_boundary, StateKind.ROUND),
                (prompt.branch_point, StateKind.BRANCH_POINT),
            )
            if position is not None
        ]
        request = Request(
            request_id=RequestId(f"r{len(self.engine.answers.requests)}"),
            prompt=TokenLedger(identity, prompt.tokens),
            max_tokens=max_tokens,
            arrival_s=self.engine.now_s,
            stop_token_ids=STOP_TOKENS,
            resume_points=(*points, *heads),
            cache_policy=CachePolicy(retain=retain, **extra),
        )
        if not 0 < request.prompt_tokens < MAX_CONTEXT:
            return None
        if not self.engine.submit(request):
            return None
        self.run_steps(then)
        return request.request_id

    def submit_main(self, which: int, prompt: Prompt, then: int, **options) -> None:
        client = self.clients[which]
        self.waiting = {i: c for i, c in self.waiting.items() if c is not client}
        self.waiting[f"r{len(self.engine.answers.requests)}"] = client
        if self.submit_of(which, prompt, then, **options) is None:
            client.restart()

    def submit_of(self, which: int, prompt: Prompt, then: int, **options) -> RequestId | None:
        """Submit for one client, with its tenant and its system prompt as a head."""
        heads = (_head(SYSTEM_TOKENS[which]),) if SYSTEM_TOKENS[which] else ()
        return self.submit(prompt, then, identity=self._identity(which), heads=heads, **options)

    def _identity(self, which: int) -> Identity:
        return THEIRS if which == 2 and self.has_two_tenants else MINE

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
    def repeat_the_last_prompt(self, which, retain, max_tokens, then):
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
            options = {"max_tokens": max_tokens, "retain": retain, "kind": StateKind.RESPONSE}
            self.submit_of(which, prompt, then, **options)

    @rule(which=CONVERSATIONS, num_words=NUM_WORDS, think=THINK, retain=USUALLY, then=THEN)
    def append_a_tool_result(self, which, num_words, think, retain, then):
        client = self.clients[which]
        prompt = client.tool_round(num_words, think)
        if prompt is not None:
            client.last, client.answer = prompt, None
            self.submit_main(which, prompt, then, retain=retain)

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
    def start_with_a_shared_head(self, number, system, which, marked, retain, then, extra):
        """A sub-agent request: a head that other requests share, and its own message."""
        prompt = user_turn(words(system, 140), words(("sub", number), 20), 1)
        heads = (_head(70), _head(140, marked))
        identity = self._identity(which)
        self.submit(prompt, then, 2, retain, identity, heads=heads, extra=extra)

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
        change=st.sampled_from(CHANGES),
        position=st.integers(0, MAX_CONTEXT),
        bounded=st.booleans(),
        then=THEN,
    )
    def submit_a_near_duplicate(self, which, change, position, bounded, then):
        client = self.clients[which]
        if client.last is None:
            return
        tokens = client.last.tokens + (client.answer or [])
        if change == "cut":
            tokens = tokens[: len(tokens) - position % 70]
        elif change == "mutate":
            tokens[position % len(tokens)] = 9
        boundary = position % len(tokens) if tokens and bounded else None
        identity = {"tenant": THEIRS, "epoch": OLD}.get(change, MINE)
        self.submit(Prompt(tokens, boundary), then, identity=identity)

    @rule(
        what=st.sampled_from(FAULTS),
        index=st.integers(0, 20),
        seconds=st.sampled_from([0.5, 30.0, 61.0, 900.0]),
    )
    def inject_fault(self, what, index, seconds):
        """Cancel a request, fail work, moves or a capture, drop a session, advance the clock."""
        engine, open_ids = self.engine, self.engine.answers.open_requests()
        match what:
            case "drop" if engine.sessions():
                engine.drop(engine.pick(index))
            case "wait":
                engine.now_s += seconds
            case "cancel" if open_ids:
                engine.cancel(open_ids[index % len(open_ids)])
            case "fail moves":
                engine.fails_next_moves = True
            case "fail capture":
                engine.fails_next_capture = True
            case "fail work" if open_ids:
                engine.failing.add(open_ids[index % len(open_ids)])

    @rule(
        what=st.sampled_from(ADMIN_ACTIONS),
        index=st.integers(0, 20),
        seconds=st.sampled_from([2.0, 30.0, 500.0]),
    )
    def administer(self, what, index, seconds=30.0):
        """Pin or unpin a session, or change the quota of the second tenant."""
        engine, profile = self.engine, self.engine.profile
        match what:
            case "pin" if engine.sessions():
                engine.pin(engine.pick(index), seconds)
            case "unpin" if engine.sessions():
                engine.unpin(engine.pick(index))
            case "quota" if self.has_two_tenants:
                entries = min(index % 4, profile.entries)
                pages = min((0, 3, 6, 12)[index % 4], self.spare_pages)
                engine.set_quotas({"theirs": Quota(entries, pages, min(1, profile.anchors))})
            case "no quota":
                engine.set_quotas({})

    # Steps of the engine.

    @rule(count=st.sampled_from([1, 2, 3, 10]), dropped=st.sampled_from([None, None, None, 0]))
    def steps(self, count, dropped):
        self.run_steps(count, dropped)

    def run_steps(self, count: int, dropped: int | None = None) -> None:
        if count == UNTIL_IDLE:
            self.engine.drain()
            return
        for _ in range(count):
            if not self.engine.scheduler.has_work:
                break
            self.engine.step(dropped)
            dropped = None

    def save_answer(self, request_id: RequestId, answer: list[int]) -> None:
        client = self.waiting.pop(request_id, None)
        if client is not None:
            client.answer = answer

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.drain_and_drop_all()


def _head(num_tokens: int, is_marked: bool = False) -> ResumePoint:
    return ResumePoint(num_tokens, StateKind.HEAD, is_marked)
