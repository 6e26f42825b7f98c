"""A runner without a model, for tests of everything above it. It ships with the package.

Its "state" of a slot is the very list of tokens that went into it, and its "KV" of a page position
is a mark of the whole prefix that was computed there. So it notices every wrong move: a state
restored from the wrong slot, a page overwritten while shared, a position computed twice or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from kvreg_service.core.errors import InvariantBroken, KvregError
from kvreg_service.core.ids import PAGE_TOKENS, PageId, RequestId, SlotId, pages_for
from kvreg_service.core.pages import PageCopy
from kvreg_service.core.request import Request
from kvreg_service.core.step import SlotCopy, SlotSwap, StateMove, StepPlan, StepResult, Work

Prefix = tuple[int, ...]


class FakeRunner:
    """Carries out plans on token lists and samples ``next_token(prefix)``.

    ``fail_next`` makes the next plan fail for the named requests after half of its effects: what
    the other half would have written is spoiled, so that nobody can rely on it unnoticed. With
    ``fails_moves`` off a request that is prepared and worked on in one step fails in its work.
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
        self.fails_moves = True
        self.computed_tokens = 0

    def begin(self, request: Request) -> None:
        """Nothing to prepare."""

    def forget(self, request_id: RequestId) -> None:
        """Nothing to drop."""

    def state(self, slot: SlotId) -> Prefix | None:
        """Return the tokens that are in a slot's state; None when it was never written."""
        return self._slots[slot]

    def holds(self, pages: Sequence[PageId], tokens: Sequence[int]) -> bool:
        """Return whether a page table holds the KV of ``tokens``, computed on their own prefix."""
        marks = _marks(tokens)
        if len(pages) < pages_for(len(marks)):
            return False
        for index, start in enumerate(range(0, len(marks), PAGE_TOKENS)):
            wanted = marks[start : start + PAGE_TOKENS]
            if self._pages[pages[index]][: len(wanted)] != wanted:
                return False
        return True

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
            done = len(moves)
            if self.fails_moves and request_id in failing:
                done //= 2
                result.failed[request_id] = failing[request_id]
            result.is_prepared = request_id not in result.failed
            for move in moves[:done]:
                self._move(move)
            for move in moves[done:]:
                self._spoil(move)
        for work in plan.work:
            if work.request_id in result.failed:
                continue
            if work.request_id in failing:
                result.failed[work.request_id] = failing[work.request_id]
                self._spoil_work(work)
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

    def _spoil(self, move: StateMove) -> None:
        match move:
            case SlotCopy(_, dst):
                self._slots[dst] = None
            case SlotSwap(first, second):
                self._slots[first] = self._slots[second] = None
            case PageCopy(_, dst):
                self._pages[dst] = [None] * PAGE_TOKENS

    def _spoil_work(self, work: Work) -> None:
        self._slots[work.slot] = None
        if work.capture_to is not None:
            self._slots[work.capture_to] = None
        for position in range(work.start, work.end):
            self._pages[work.pages[position // PAGE_TOKENS]][position % PAGE_TOKENS] = None

    def _compute(self, work: Work) -> int | None:
        before = self._slots[work.slot] if work.start else ()
        if before is None or len(before) != work.start:
            length = None if before is None else len(before)
            raise InvariantBroken(
                f"slot {work.slot} holds {length} tokens, and request {work.request_id} starts "
                f"at {work.start}"
            )
        if not self.holds(work.pages, before):
            raise InvariantBroken(
                f"pages {work.pages} do not hold the {work.start} tokens that request "
                f"{work.request_id} goes on from"
            )
        state = before + work.token_ids
        for position, mark in enumerate(_marks(state)[work.start :], start=work.start):
            self._pages[work.pages[position // PAGE_TOKENS]][position % PAGE_TOKENS] = mark
        self._slots[work.slot] = state
        self.computed_tokens += len(work.token_ids)
        if work.capture_to is not None:
            self._slots[work.capture_to] = state
        return self._next_token(state) if work.samples else None


def _marks(tokens: Sequence[int]) -> list[int]:
    """Return one number for each prefix of ``tokens``, the empty one left out."""
    return list(accumulate(tokens, lambda mark, token: hash((mark, token)), initial=0))[1:]
