"""Checks of each answer, of each registry snapshot, and of the engine at the end.

Collects violations as findings instead of raising, so that a soak reports all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.soak.door import AbortedAt, Refusal, Reply, RequestSpec
from tests.soak.faults import INJECTED

from kvreg_service.core.labels import LaneState
from kvreg_service.core.states.quota import Quota
from kvreg_service.engine.interface.generation import TokenReport
from kvreg_service.engine.interface.snapshot import RegistrySnapshot

MAX_LOGPROB_ERROR = 1e-3
"""The largest difference of a log-probability from that of a cold run in fp32. Rounding with other
batches and chunks gives 2e-5; the state of another text gives more."""

TIE = 2e-3
"""Two tokens whose log-probabilities differ by less may be sampled in either order."""

BUSY: frozenset[LaneState] = frozenset({LaneState.PREFILL, LaneState.DECODE})


@dataclass(frozen=True)
class Finding:
    """A violation, and the operation in which it was found."""

    what: str
    operation: int | None = None


@dataclass(frozen=True)
class Claim:
    """An answer to compare with a cold run at the end. ``doubt`` is why it looks wrong, or None."""

    spec: RequestSpec
    reply: Reply
    operation: int
    doubt: str | None = None


class Judge:
    """Checks outcomes and snapshots, counts outcomes, and collects findings and claims."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.claims: list[Claim] = []
        self.canaries: set[str] = set()
        self.quotas: dict[str, Quota] = {}
        self.ends: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.num_recalled = 0
        self.num_recalled_wrong = 0
        self.completion_tokens = 0
        self.worst_logprob_error = 0.0
        self.num_ties = 0

    def find(self, what: str, operation: int | None = None) -> None:
        """Record a finding."""
        self.findings.append(Finding(what, operation))

    def check_outcome(
        self, operation: int, spec: RequestSpec, outcome: Reply | Refusal
    ) -> Reply | None:
        """Check the outcome of a request; return its answer if it has one."""
        if isinstance(outcome, Refusal):
            self._refused(operation, outcome)
            return None
        self.ends["finished"] += 1
        self.paths[outcome.path] += 1
        self.completion_tokens += outcome.completion_tokens
        if outcome.cached_tokens + outcome.computed_tokens != outcome.prompt_tokens:
            self.find(f"cached and computed tokens do not add up: {outcome}", operation)
        if outcome.completion_tokens > spec.options.max_tokens:
            self.find(f"the answer is longer than its limit: {outcome}", operation)
        if not spec.options.cache_policy.may_reuse and outcome.cached_tokens:
            self.find(f"cached tokens with cache_prompt false: {outcome}", operation)
        if any(text in outcome.text for text in spec.options.stop):
            self.find(f"the text contains a stop string: {outcome.text!r}", operation)
        history = "".join(str(message["content"]) for message in spec.messages)
        foreign = {one for one in self.canaries if one in outcome.text and one not in history}
        doubt = f"another conversation's canary {foreign}" if foreign else None
        if doubt or spec.options.is_controlled:
            self.claims.append(Claim(spec, outcome, operation, doubt))
        return outcome

    def check_recall(self, operation: int, spec: RequestSpec, reply: Reply, canary: str) -> None:
        """Check an answer that must contain a canary."""
        self.num_recalled += 1
        if canary not in reply.text:
            self.num_recalled_wrong += 1
            self.claims.append(Claim(spec, reply, operation, f"the canary {canary} is missing"))

    def count_disconnect(self, operation: int, outcome: AbortedAt | Refusal) -> None:
        """Count a request whose client disconnected."""
        if isinstance(outcome, Refusal):
            self._refused(operation, outcome)
        else:
            self.ends[f"left: {outcome}"] += 1

    def _refused(self, operation: int, refusal: Refusal) -> None:
        self.refusals[refusal.code] += 1
        if not refusal.was_accepted:
            return
        self.ends["failed"] += 1
        if INJECTED not in refusal.message:
            self.find(f"failed without an injected fault: {refusal}", operation)

    def confirm(self, claim: Claim, cold: Reply | Refusal) -> None:
        """Compare an answer with that of a cold run of the same request."""
        if isinstance(cold, Refusal):
            self.find(f"the cold run was refused: {cold}", claim.operation)
        elif claim.doubt is not None:
            # The model may be wrong by itself; then the cold run gives the same text.
            if cold.text != claim.reply.text:
                what = f"{claim.doubt}: {claim.reply.text!r}; cold run: {cold.text!r}"
                self.find(what, claim.operation)
        else:
            self._compare(claim, claim.reply.reports, cold.reports)

    def _compare(
        self, claim: Claim, warm: Sequence[TokenReport], cold: Sequence[TokenReport]
    ) -> None:
        for index, (one, other) in enumerate(zip(warm, cold, strict=False)):
            error = max(abs(a.logprob - b.logprob) for a, b in zip(one.top, other.top, strict=True))
            self.worst_logprob_error = max(self.worst_logprob_error, error)
            if error > MAX_LOGPROB_ERROR:
                what = f"log-probability {index} differs by {error:.2g}: {one}; cold run: {other}"
                self.find(what, claim.operation)
                return
            if one.chosen.spelling != other.chosen.spelling:
                self._differs(claim, index, one, other)
                return
        if claim.reply.text and not cold:
            self.find("the cold run has no tokens", claim.operation)

    def _differs(self, claim: Claim, index: int, one: TokenReport, other: TokenReport) -> None:
        is_tie = other.top[0].logprob - other.top[1].logprob < TIE
        # A sampled token may change with the last bit of a probability.
        if is_tie or claim.spec.options.seed is not None:
            self.num_ties += 1
        else:
            what = f"token {index} differs: {one}; cold run: {other}"
            self.find(what, claim.operation)

    def check_snapshot(self, operation: int | None, now: RegistrySnapshot) -> None:
        """Check the invariants of a registry snapshot, which hold at any time."""
        for pool in now.pools:
            if pool.free + pool.referenced != pool.total or pool.free < 0:
                self.find(f"pages do not add up: {pool}", operation)
        slots = now.state_slots
        if slots.free + slots.working + slots.kept != slots.total or slots.free < 0:
            self.find(f"state slots do not add up: {slots}", operation)
        busy = [lane.request_id for lane in now.lanes if lane.state in BUSY]
        if len(set(busy)) != len(busy) or now.running != len(busy):
            self.find(f"running is {now.running}, but the busy lanes are {busy}", operation)
        states = [state for session in now.sessions for state in session.states]
        held = [state.slot for state in states]
        if len(held) != slots.kept or len(set(held)) != len(held):
            self.find(f"{slots.kept} slots are kept, but the states have {held}", operation)
        num_running = sum(session.num_running for session in now.sessions)
        if num_running != now.running:
            self.find(f"running is {now.running}, but sessions run {num_running}", operation)

    def check_totals(self, now: RegistrySnapshot) -> None:
        """Compare the totals of the idle engine with the outcomes of the clients."""
        totals = now.totals
        num_left = sum(n for end, n in self.ends.items() if end.startswith("left: "))
        finished, failed = self.ends["finished"], self.ends["failed"]
        ended = totals.finished + totals.failed + totals.cancelled
        expected = finished + failed
        if not expected <= ended <= expected + num_left:
            self.find(f"{ended} requests ended; clients read {expected} and aborted {num_left}")
        # The request of a disconnected client may have ended in any way.
        if not finished <= totals.finished <= finished + num_left:
            self.find(f"finished is {totals.finished}; clients counted {finished}")
        if not failed <= totals.failed <= failed + num_left:
            self.find(f"failed is {totals.failed}; clients counted {failed}")
        by_path = sum(totals.requests_by_path.values()) + totals.never_started
        if by_path != ended:
            self.find(f"{ended} requests ended, but reuse paths add up to {by_path}: {totals}")
        if totals.completion_tokens < self.completion_tokens:
            self.find(f"completion_tokens is {totals.completion_tokens}; clients received more")

    def check_quota(self, own: RegistrySnapshot, quota: Quota) -> None:
        """Check the sessions of one tenant against its quota, while no request runs."""
        (pool,) = own.pools
        kept = Quota(
            entries=sum(one.lane is None and not one.is_shared for one in own.sessions),
            pages=pool.referenced,
            anchors=sum(one.is_shared for one in own.sessions),
        )
        if kept.entries > quota.entries or kept.anchors > quota.anchors or kept.pages > quota.pages:
            self.find(f"a tenant keeps {kept}, more than {quota}")

    def check_empty(self, now: RegistrySnapshot) -> None:
        """Check that the engine is empty after everything kept was dropped."""
        for pool in now.pools:
            if pool.free != pool.total:
                self.find(f"pages are leaked: {pool}")
        if now.state_slots.free != now.state_slots.total:
            self.find(f"state slots are leaked: {now.state_slots}")
        if now.running or now.queued:
            self.find(f"{now.running} requests run and {now.queued} wait at the end")
        taken = [one for one in now.lanes if one.state != LaneState.EMPTY]
        if taken or now.sessions:
            self.find(f"kept at the end: {taken}, {now.sessions}")
