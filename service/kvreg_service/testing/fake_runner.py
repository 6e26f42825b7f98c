"""A runner without a model, for tests of the layers above it.

The "state" of a slot is the list of its tokens, and the "KV" at a position of a page is a hash of
the whole prefix that was computed there. So it detects every wrong move: a state restored from the
wrong slot, a shared page that is overwritten, a position computed twice or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvreg_service.core.errors import InvariantBroken, KvregError
from kvreg_service.core.ids import PAGE_TOKENS, PageId, RequestId, SlotId, pages_for
from kvreg_service.core.memory.pages import PageCopy
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import SlotCopy, StateMove, StepPlan, StepResult, Work

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class FakeState:
    """The tokens of a state, and one hash for each of their prefixes."""

    tokens: Prefix = ()
    marks: tuple[int, ...] = ()

    def extended(self, tokens: Prefix) -> FakeState:
        """Return the state after ``tokens``."""
        last = self.marks[-1] if self.marks else 0
        marks = accumulate(tokens, lambda mark, token: hash((mark, token)), initial=last)
        return FakeState(self.tokens + tokens, self.marks + tuple(marks)[1:])


class FakeRunner:
    """Executes plans on token lists and samples ``next_token(prefix)``.

    ``fail_next`` makes the next plan fail for these requests after half of its effects; the targets
    of the other half are invalidated, so that any later read of them is detected. With
    ``fails_moves`` off, a request that is prepared and computed in one step fails in its work.
    """

    def __init__(
        self,
        num_slots: int,
        num_pages: int,
        next_token: Callable[[Prefix], int] | None = None,
    ) -> None:
        self._slots: list[FakeState | None] = [None] * num_slots
        self._pages: list[list[int | None]] = [[None] * PAGE_TOKENS for _ in range(num_pages)]
        self._next_token = next_token or (lambda prefix: (sum(prefix[-3:]) + len(prefix)) % 97 + 3)
        self.fail_next: dict[RequestId, KvregError] = {}
        self.fails_moves = True
        self.computed_tokens = 0

    def begin(self, request: Request) -> None:
        """Do nothing."""

    def forget(self, request_id: RequestId) -> None:
        """Do nothing."""

    def state(self, slot: SlotId) -> Prefix | None:
        """Return the tokens of a slot's state; None if it is invalid."""
        state = self._slots[slot]
        return None if state is None else state.tokens

    def holds(self, pages: Sequence[PageId], slot: SlotId) -> bool:
        """Return whether a page table has the KV of every token of a slot's state."""
        state = self._slots[slot]
        return state is not None and self._agree(pages, state)

    def execute(self, plan: StepPlan) -> StepResult:
        """Execute one plan.

        Raises:
            InvariantBroken: A state or a page does not have the content that the plan needs.
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
            case PageCopy(src, dst):
                self._pages[dst] = list(self._pages[src])

    def _spoil(self, move: StateMove) -> None:
        match move:
            case SlotCopy(_, dst):
                self._slots[dst] = None
            case PageCopy(_, dst):
                self._pages[dst] = [None] * PAGE_TOKENS

    def _spoil_work(self, work: Work) -> None:
        self._slots[work.slot] = None
        if work.capture_to is not None:
            self._slots[work.capture_to] = None
        for position in range(work.start, work.end):
            self._pages[work.pages[position // PAGE_TOKENS]][position % PAGE_TOKENS] = None

    def _compute(self, work: Work) -> int | None:
        before = self._slots[work.slot] if work.start else FakeState()
        if before is None or len(before.tokens) != work.start:
            length = None if before is None else len(before.tokens)
            raise InvariantBroken(
                f"slot {work.slot} holds {length} tokens, and request {work.request_id} starts "
                f"at {work.start}"
            )
        if not self._agree(work.pages, before):
            raise InvariantBroken(
                f"pages {work.pages} do not hold the {work.start} tokens that request "
                f"{work.request_id} goes on from"
            )
        after = before.extended(work.token_ids)
        for position in range(work.start, work.end):
            page = self._pages[work.pages[position // PAGE_TOKENS]]
            page[position % PAGE_TOKENS] = after.marks[position]
        self._slots[work.slot] = after
        self.computed_tokens += len(work.token_ids)
        if work.capture_to is not None:
            self._slots[work.capture_to] = after
        return self._next_token(after.tokens) if work.samples else None

    def _agree(self, pages: Sequence[PageId], state: FakeState) -> bool:
        if len(pages) < pages_for(len(state.marks)):
            return False
        for index, start in enumerate(range(0, len(state.marks), PAGE_TOKENS)):
            wanted = list(state.marks[start : start + PAGE_TOKENS])
            if self._pages[pages[index]][: len(wanted)] != wanted:
                return False
        return True
