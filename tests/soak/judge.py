"""What must hold of each answer, of each look at the registry, and at the end.

Collects findings and stops nothing: a soak tells everything that it saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.soak.door import Ask, Left, Refusal, Reply
from tests.soak.faults import INJECTED

from kvreg_service.core.labels import LaneState
from kvreg_service.core.quota import Quota
from kvreg_service.engine.interface.generation import TokenReport
from kvreg_service.engine.interface.snapshot import RegistrySnapshot

MAX_LOGPROB_ERROR = 1e-3
"""How far the logarithm of a probability may be from that of a cold run in fp32. Rounding in other
batches and chunks gives 2e-5; a state of other text changes it by more."""

TIE = 2e-3
"""Two tokens whose logarithms differ by less may change places."""

BUSY: frozenset[LaneState] = frozenset({LaneState.PREFILL, LaneState.DECODE})


@dataclass(frozen=True)
class Finding:
    """Something that must not be, and the operation at which it was seen."""

    what: str
    operation: int | None = None


@dataclass(frozen=True)
class Claim:
    """An answer that a cold run at the end must confirm. ``doubt`` says what is odd about it."""

    ask: Ask
    reply: Reply
    operation: int
    doubt: str | None = None


class Judge:
    """Knows all canaries, counts all ends, and collects findings and claims."""

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
        """Note a finding."""
        self.findings.append(Finding(what, operation))

    def take(self, operation: int, ask: Ask, outcome: Reply | Refusal) -> Reply | None:
        """Judge how a request ended; return its answer if it has one."""
        if isinstance(outcome, Refusal):
            self._refused(operation, outcome)
            return None
        self.ends["finished"] += 1
        self.paths[outcome.path] += 1
        self.completion_tokens += outcome.completion_tokens
        if outcome.cached_tokens + outcome.computed_tokens != outcome.prompt_tokens:
            self.find(f"cached and computed tokens do not add up: {outcome}", operation)
        if outcome.completion_tokens > ask.options.max_tokens:
            self.find(f"the answer is longer than its limit: {outcome}", operation)
        if not ask.options.cache_policy.may_reuse and outcome.cached_tokens:
            self.find(f"reused although it may not: {outcome}", operation)
        if any(text in outcome.text for text in ask.options.stop):
            self.find(f"the text holds its stop string: {outcome.text!r}", operation)
        said = "".join(str(message["content"]) for message in ask.messages)
        foreign = {one for one in self.canaries if one in outcome.text and one not in said}
        doubt = f"another conversation's canary {foreign}" if foreign else None
        if doubt or ask.options.is_controlled:
            self.claims.append(Claim(ask, outcome, operation, doubt))
        return outcome

    def recalled(self, operation: int, ask: Ask, reply: Reply, canary: str) -> None:
        """Judge an answer that must tell a canary."""
        self.num_recalled += 1
        if canary not in reply.text:
            self.num_recalled_wrong += 1
            self.claims.append(Claim(ask, reply, operation, f"the canary {canary} is missing"))

    def left(self, operation: int, outcome: Left | Refusal) -> None:
        """Count a request whose client has left."""
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
            self.find(f"failed without a fault: {refusal}", operation)

    def confirm(self, claim: Claim, cold: Reply | Refusal) -> None:
        """Compare an answer with that of a run in which nothing could be reused."""
        if isinstance(cold, Refusal):
            self.find(f"refused when asked again: {cold}", claim.operation)
        elif claim.doubt is not None:
            # The model itself is wrong now and then; then it says the same when it is asked cold.
            if cold.text != claim.reply.text:
                what = f"{claim.doubt}: {claim.reply.text!r}, and cold {cold.text!r}"
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
                what = f"token {index} is {error:.2g} off a cold run's: {one} and {other}"
                self.find(what, claim.operation)
                return
            if one.chosen.spelling != other.chosen.spelling:
                self._differs(claim, index, one, other)
                return
        if claim.reply.text and not cold:
            self.find("the cold run gave nothing", claim.operation)

    def _differs(self, claim: Claim, index: int, one: TokenReport, other: TokenReport) -> None:
        is_tie = other.top[0].logprob - other.top[1].logprob < TIE
        # A draw may fall on the other side of a rounded border.
        if is_tie or claim.ask.options.seed is not None:
            self.num_ties += 1
        else:
            what = f"token {index} differs from a cold run's: {one} and {other}"
            self.find(what, claim.operation)

    def look(self, operation: int | None, now: RegistrySnapshot) -> None:
        """Judge what the registry shows at any moment."""
        for pool in now.pools:
            if pool.free + pool.referenced != pool.total or pool.free < 0:
                self.find(f"pages do not add up: {pool}", operation)
        if not 0 <= now.state_slots.used <= now.state_slots.total:
            self.find(f"state slots do not add up: {now.state_slots}", operation)
        busy = [lane.request_id for lane in now.lanes if lane.state in BUSY]
        if len(set(busy)) != len(busy) or now.running != len(busy):
            self.find(f"{now.running} run, and lanes show {busy}", operation)
        places = [one.sequence_id for one in (*now.lanes, *now.entries, *now.anchors)]
        held = [sequence for sequence in places if sequence is not None]
        if len(set(held)) != len(held):
            self.find(f"a sequence is in two places: {sorted(held)}", operation)

    def count(self, now: RegistrySnapshot) -> None:
        """Compare the engine's totals with what clients saw; nothing runs any more."""
        totals = now.totals
        num_left = sum(n for end, n in self.ends.items() if end.startswith("left: "))
        finished, failed = self.ends["finished"], self.ends["failed"]
        ended = totals.finished + totals.failed + totals.cancelled
        expected = finished + failed
        if not expected <= ended <= expected + num_left:
            self.find(f"{ended} requests ended, of {expected} that were read and {num_left} left")
        # Who leaves cannot know whether the end was on its way.
        if not finished <= totals.finished <= finished + num_left:
            self.find(f"{totals.finished} finished, and clients saw {finished}")
        if not failed <= totals.failed <= failed + num_left:
            self.find(f"{totals.failed} failed, and clients saw {failed}")
        by_path = sum(totals.requests_by_path.values()) + totals.never_started
        if by_path != ended:
            self.find(f"{ended} requests ended, and paths have {by_path}: {totals}")
        if totals.completion_tokens < self.completion_tokens:
            self.find(f"{totals.completion_tokens} tokens, and clients got more")

    def share(self, own: RegistrySnapshot, quota: Quota) -> None:
        """Judge what is kept of one tenant, in its own view, while nothing runs."""
        (pool,) = own.pools
        kept = Quota(
            entries=sum(entry.state != "empty" for entry in own.entries),
            pages=pool.referenced,
            anchors=sum(anchor.state != "empty" for anchor in own.anchors),
        )
        if kept.entries > quota.entries or kept.anchors > quota.anchors or kept.pages > quota.pages:
            self.find(f"{kept} is kept of a tenant with {quota}")

    def rest(self, now: RegistrySnapshot) -> None:
        """Judge what is left when everything kept was given up."""
        for pool in now.pools:
            if pool.free != pool.total:
                self.find(f"pages are left: {pool}")
        if now.state_slots.used:
            self.find(f"state slots are left: {now.state_slots}")
        if now.running or now.queued:
            self.find(f"{now.running} run and {now.queued} wait at the end")
        taken = [one for one in (*now.lanes, *now.entries, *now.anchors) if one.state != "empty"]
        if taken:
            self.find(f"places are left: {taken}")
