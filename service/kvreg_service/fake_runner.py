"""A runner without a model, for tests of everything above it. It ships with the package.

Its "state" of a slot is the very list of tokens that went into it, and its "KV" of a page position
is the prefix that was computed there. So it notices every wrong move: a state restored from the
wrong slot, a page overwritten while shared, a position computed twice or never.
"""

from __future__ import annotations

from collections.abc import Callable

from kvreg_service.core.errors import InvariantBroken, KvregError
from kvreg_service.core.ids import PAGE_TOKENS, RequestId
from kvreg_service.core.pages import PageCopy
from kvreg_service.core.request import Request
from kvreg_service.core.step import SlotCopy, SlotSwap, StateMove, StepPlan, StepResult, Work

Prefix = tuple[int, ...]


class FakeRunner:
    """Carries out plans on token lists and samples ``next_token(prefix)``.

    ``fail_next`` makes the next plan fail for the named requests, after half of its effects.
    """

    def __init__(
        self,
        num_slots: int,
        num_pages: int,
        next_token: Callable[[Prefix], int] | None = None,
    ) -> None:
        self._slots: list[Prefix | None] = [None] * num_slots
        self._pages: list[list[int | None]] = [[None] * PAGE_TOKENS for _ in range(num_pages)]
        self._next_token = next_token or (lambda prefix: (sum(prefix[-3:]) + len(prefix)) % 97 + 3)
        self.fail_next: dict[RequestId, KvregError] = {}
        self.computed_tokens = 0

    def begin(self, request: Request) -> None:
        """Nothing to prepare."""

    def forget(self, request_id: RequestId) -> None:
        """Nothing to drop."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one plan.

        Raises:
            InvariantBroken: a state or a page does not hold what the plan relies on.
        """
        result = StepResult()
        failing, self.fail_next = self.fail_next, {}
        if plan.preparation is not None:
            request_id = plan.preparation.request_id
            moves = plan.preparation.moves
            if request_id in failing:
                moves = moves[: len(moves) // 2]
                result.failed[request_id] = failing[request_id]
            for move in moves:
                self._move(move)
        for work in plan.work:
            if work.request_id in result.failed:
                continue
            if work.request_id in failing:
                result.failed[work.request_id] = failing[work.request_id]
                # Whatever was half done must not be relied upon by anybody.
                self._slots[work.slot] = None
                if work.capture_to is not None:
                    self._slots[work.capture_to] = None
                continue
            token = self._compute(work)
            if token is not None:
                result.sampled[work.request_id] = token
        return result

    def _move(self, move: StateMove) -> None:
        match move:
            case SlotCopy(src, dst):
                self._slots[dst] = self._slots[src]
            case SlotSwap(first, second):
                slots = self._slots
                slots[first], slots[second] = slots[second], slots[first]
            case PageCopy(src, dst):
                self._pages[dst] = list(self._pages[src])

    def _compute(self, work: Work) -> int | None:
        before = self._slots[work.slot] if work.start else ()
        if before is None or len(before) != work.start:
            length = None if before is None else len(before)
            raise InvariantBroken(
                f"slot {work.slot} holds {length} tokens, and request {work.request_id} starts "
                f"at {work.start}"
            )
        for position, token in enumerate(before):
            kept = self._pages[work.pages[position // PAGE_TOKENS]][position % PAGE_TOKENS]
            if kept != hash(before[: position + 1]):
                raise InvariantBroken(
                    f"page {work.pages[position // PAGE_TOKENS]} does not hold token {token} of "
                    f"request {work.request_id} at {position}"
                )
        state = before
        for position, token in enumerate(work.token_ids, start=work.start):
            state = (*state, token)
            self._pages[work.pages[position // PAGE_TOKENS]][position % PAGE_TOKENS] = hash(state)
        self._slots[work.slot] = state
        self.computed_tokens += len(work.token_ids)
        if work.capture_to is not None:
            self._slots[work.capture_to] = state
        return self._next_token(state) if work.samples else None
