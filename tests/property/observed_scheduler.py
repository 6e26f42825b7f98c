"""A scheduler with a fake runner, checked after every step.

After every step the scheduler's bookkeeping is compared with the mirror's, the runner's states and
pages with both, every output with that of a cold run, and every admission, eviction, anchor and pin
with its oracle.
"""

from __future__ import annotations

from collections.abc import Callable

from admission_oracle import check_admission
from anchor_oracle import AnchorOracle
from event_mirror import Mirror, terminals_first
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
from kvreg_service.core.ids import AnchorId, RequestId, SequenceId
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.memory.pages import PageState
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.scheduling.step import StepPlan
from kvreg_service.core.value import CostModel
from kvreg_service.testing.fake_runner import FakeRunner, Prefix

STOP_TOKENS = frozenset({4, 5})
COST = CostModel(slot_bytes=1000, page_bytes=640)


def next_token(prefix: Prefix) -> int:
    """Return a token that depends on the whole prefix; 3 in 100 are stop tokens."""
    token = hash(prefix) % 100
    return 4 + token % 2 if token < 3 else 10 + token % 90


class ObservedScheduler:
    """Drives a scheduler as an engine and its clients do. ``on_answer`` gets every full output.

    ``failing`` holds requests whose next work fails; the flags fail the next moves or capture.
    """

    def __init__(
        self,
        profile: Profile,
        num_pages: int,
        chunk_tokens: int,
        queue_limit: int,
        on_answer: Callable[[RequestId, list[int]], None],
    ) -> None:
        self.profile = profile
        self.num_pages = num_pages
        layout = SlotLayout(
            profile.lanes, profile.entries, profile.keep_current, anchors=profile.anchors
        )
        limits = SchedulerLimits(
            layout, num_pages, profile.context_tokens, chunk_tokens, queue_limit
        )
        rules = AdmissionRules(profile.policy, profile.exchange)
        self.scheduler = Scheduler(limits, rules, COST)
        self.runner = FakeRunner(layout.num_slots, num_pages, next_token)
        self.mirror = Mirror(profile.keep_current, num_pages, self._check_victim, self._lend)
        self.shares = ShareOracle(self.mirror, profile)
        has_anchors = profile.anchors > 0
        self._first_anchor_slot = layout.anchor(AnchorId(0)) if has_anchors else layout.num_slots
        self.anchors = AnchorOracle(self.mirror, profile, self._first_anchor_slot)
        self.audit = StepAudit(self.scheduler, self.runner, self.mirror)
        self.failing: set[str] = set()
        self.fails_next_moves = self.fails_next_capture = False
        self.now_s = 1000.0
        self._on_answer = on_answer

    # Calls of clients and administrators.

    def submit(self, request: Request) -> bool:
        """Submit a request; return whether the queue had room."""
        try:
            self.scheduler.submit(request)
        except Overloaded:
            num_idle = self.profile.lanes - self.scheduler.num_running
            limit = self.scheduler.limits.queue_limit
            # A request whose attach failed is queued again even above the limit.
            assert self.scheduler.queue_length - num_idle >= limit
            return False
        self.mirror.submitted(request)
        return True

    def open_requests(self) -> list[str]:
        return [i for i in self.mirror.requests if i not in self.mirror.terminals]

    def cancel(self, request_id: str) -> None:
        emitted = self.scheduler.cancel(RequestId(request_id), self.now_s)
        event = emitted[-1]
        assert isinstance(event, events.Cancelled)
        assert event.completion_tokens == len(self.mirror.outputs[request_id])
        self.apply_events(emitted)

    def pick(self, index: int) -> Seen:
        kept = sorted(self.mirror.kept(), key=lambda seen: seen.sequence_id)
        return kept[index % len(kept)]

    def pin(self, seen: Seen, seconds: float) -> None:
        may_pin = self.shares.may_pin(seen, self.now_s)
        try:
            self.scheduler.custody.pin(SequenceId(seen.sequence_id), seconds, self.now_s)
        except PinRefused:
            assert not may_pin, "a pin was refused although enough memory remains"
            return
        assert may_pin, "a pin was granted although too little memory remains"
        seen.pinned_until_s = self.now_s + seconds

    def set_quotas(self, quotas: dict[str, Quota]) -> None:
        emitted = self.scheduler.custody.set_quotas(quotas, self.now_s)
        self.mirror.quotas = quotas
        for seen in self.mirror.kept():
            seen.is_lent = False
        self.apply_events(emitted)
        for tenant in quotas:
            self.shares.lend(tenant, self.now_s)

    def unpin(self, seen: Seen) -> None:
        self.scheduler.custody.unpin(SequenceId(seen.sequence_id))
        seen.pinned_until_s = None

    def drop(self, index: int) -> list[events.Event]:
        """Drop the picked sequence; return the events, which the caller must apply."""
        if not self.mirror.kept():
            return []
        seen = self.pick(index)
        try:
            return self.scheduler.custody.drop(SequenceId(seen.sequence_id), seen.tenant)
        except (SessionBusy, SessionNotFound):
            # The step in flight has just resumed or evicted it.
            return []

    def apply_events(self, emitted: list[events.Event]) -> None:
        for event in terminals_first(emitted):
            self.mirror.apply(event, self.now_s)
        self.mirror.settle(self.now_s)

    # Steps of the engine.

    def drain(self) -> None:
        # The most steps that the open requests can need: prefill chunks, heads, decode steps.
        bound = 0
        for request_id in self.open_requests():
            request = self.mirror.requests[request_id]
            chunk = self.scheduler.limits.prefill_chunk_tokens
            answer = min(request.max_tokens, self.profile.context_tokens - request.prompt_tokens)
            bound += 3 + len(request.heads) + request.prompt_tokens // chunk + answer
        num_steps = 0
        while self.scheduler.has_work:
            self.step()
            num_steps += 1
            assert num_steps <= bound, "a request starves"

    def step(self, dropped: int | None = None) -> None:
        commit_s = self.now_s + 0.25
        plan = self.scheduler.schedule(self.now_s)
        num_free_after = self.scheduler.holdings.pages.num_free
        num_planned = len(self.scheduler.holdings.events)
        self.audit.check_plan(plan)
        self._inject(plan)
        result = self.runner.execute(plan)
        # A sequence may be dropped while the step runs. The events of the plan in flight are
        # reported later, although they occurred first.
        dropped_then = [] if dropped is None else self.drop(dropped)
        emitted = self.scheduler.commit(plan, result, commit_s)
        self._check_planned(plan, emitted[:num_planned], num_free_after)
        self._check_failures(emitted, result.failed)
        self.apply_events(dropped_then)
        self.mirror.apply_result(
            plan, result, emitted[num_planned:], self._first_anchor_slot, self.now_s, commit_s
        )
        self.now_s = commit_s
        self._check_outputs(emitted)
        self.audit.check_bookkeeping(commit_s)
        self.shares.check(commit_s)

    def _check_planned(
        self, plan: StepPlan, emitted: list[events.Event], num_free_after: int
    ) -> None:
        """Apply the events of `schedule` and check each of them against its oracle."""
        self.mirror.end_pins(self.now_s)
        first = next((i for i, e in enumerate(emitted) if not _is_at_step_start(e)), len(emitted))
        self.mirror.apply_planned(emitted[:first], self.now_s)
        for seen in self.mirror.kept():
            assert not self._is_expired(seen), "a sequence was kept beyond its TTL"
        emitted = emitted[first:]
        admitted = [e.request_id for e in emitted if isinstance(e, events.Admitted)]
        next_request = self.shares.next_request(self.now_s)
        assert admitted == ([next_request] if next_request is not None else [])
        num_free = self.mirror.num_free_pages
        check_admission(self.mirror, self.profile, emitted, num_free, self.now_s)
        self._check_page_evictions(emitted, num_free_after)
        self.anchors.note_admission(emitted)
        self.anchors.begin_step(plan)
        self.mirror.apply_planned(emitted, self.now_s)
        self.anchors.check_plan(plan, emitted, self.now_s)

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

    # Checks.

    def _lend(self, tenant: str, now_s: float) -> None:
        self.shares.lend(tenant, now_s)

    def _is_expired(self, seen: Seen) -> bool:
        has_expired = seen.expires_s is not None and seen.expires_s <= self.now_s
        return has_expired and not seen.is_pinned(self.now_s)

    def _check_victim(self, victim: Seen, reason: EvictionReason, now_s: float) -> None:
        if reason not in (EvictionReason.REQUESTED, EvictionReason.FAILED):
            assert not victim.is_pinned(now_s), "a pinned sequence was evicted"
        match reason:
            case EvictionReason.PAGES_NEEDED:
                assert victim in self._expected_page_victims(now_s)
            case EvictionReason.EXPIRED:
                assert self._is_expired(victim)
            case EvictionReason.QUOTA:
                assert self.shares.exceeds_quota(victim.tenant)
            case EvictionReason.ANCHOR_NEEDED:
                self.anchors.check_victim(victim, now_s)

    def _expected_page_victims(self, now_s: float) -> list[Seen | None]:
        """Return the victim for each running tenant; sequences that free a page come first."""
        ranking, kept = Ranking(self.mirror, self.profile, now_s), self.mirror.kept()
        freeing = [seen for seen in kept if self.mirror.frees_a_page(seen)]
        tenants = {seen.tenant for seen in self.mirror.running()}
        return [
            ranking.first_victim(freeing, one) or ranking.first_victim(kept, one) for one in tenants
        ]

    def _check_page_evictions(self, emitted: list[events.Event], num_free_after: int) -> None:
        """Check that no more sequences were evicted for pages than needed."""
        taken = [e for e in emitted if isinstance(e, events.Evicted)]
        if taken and taken[-1].reason is EvictionReason.PAGES_NEEDED:
            assert num_free_after < max(1, (taken[-1].tokens + 63) // 64)

    def _check_failures(self, emitted, injected) -> None:
        for event in emitted:
            if isinstance(event, events.Failed) and not isinstance(event.error, QueueTimeout):
                assert event.request_id in injected, event.error

    def _check_outputs(self, emitted: list[events.Event]) -> None:
        for event in emitted:
            if isinstance(event, events.TokenSampled):
                request = self.mirror.requests[event.request_id]
                output = self.mirror.outputs[event.request_id]
                cold = next_token((*request.prompt.tokens, *output[:-1]))
                assert event.token == cold, "the output differs from that of a cold run"
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
        assert request.prompt_tokens + len(output) <= self.profile.context_tokens
        stopped = output[-1] in STOP_TOKENS
        assert event.reason == ("stop" if stopped else "length")
        self._on_answer(event.request_id, output)

    def drain_and_drop_all(self) -> None:
        """Finish all requests and drop all kept sequences; check that no page is leaked."""
        self.drain()
        assert set(self.mirror.terminals) == set(self.mirror.requests)
        for seen in self.mirror.kept():
            self.apply_events(self.scheduler.custody.drop(SequenceId(seen.sequence_id)))
        self.scheduler.check_invariants(self.now_s)
        assert not self.mirror.sequences
        assert self.scheduler.holdings.pages.count()[PageState.FREE] == self.num_pages


def _is_at_step_start(event: events.Event) -> bool:
    """Whether the event belongs to the start of a step: expiry or queue timeout."""
    if isinstance(event, events.Evicted):
        return event.reason is EvictionReason.EXPIRED
    return isinstance(event, events.Failed)
