"""Whatever breaks while moves and work are carried out, it breaks the requests it belongs to.

A scenario with every kind of move and work is played once to count the calls of an operation, and
then again for each of these calls, broken in each way in which it can break. What is asked then is
answered right or fails, what was kept can go on, and with everything given up nothing is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from engine_bench import EngineBench, Hold, token_prompt

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.output.detokenizer import IncrementalDetokenizer
from kvreg_service.core.errors import KvregError, RequestFailed
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.engine.interface.generation import GenerationRequest
from kvreg_service.engine.loop import runner
from kvreg_service.engine.output.delivery import Delivery
from kvreg_service.model.sampling import Sampler

LANES, ENTRIES = 2, 2
DRAWN = SamplingParams(temperature=1.0, seed=7, num_logprobs=2)
REPORTED = SamplingParams(num_logprobs=1)


@dataclass(frozen=True)
class Operation:
    """A function that carries out a part of a step, and on which object of an engine it is."""

    name: str
    owner: Callable[[EngineBench], object]
    num_victims: int = 1
    """How many requests one failure of it may cost."""

    def __str__(self) -> str:
        return self.name


MOVES = [
    Operation("copy", lambda bench: bench.states),
    Operation("swap", lambda bench: bench.states),
    Operation("copy_page", lambda bench: bench.pages),
]
PREFILL = Operation("prefill", lambda bench: bench.model)
DECODE = Operation("decode", lambda bench: bench.model, LANES)
GREEDY_CHOICE = Operation("argmax_batch", lambda _: runner, LANES)
DRAW = Operation("sample", lambda _: Sampler)
REPORT = Operation("token_logprobs", lambda _: runner)
TEXT = Operation("push", lambda _: IncrementalDetokenizer)
LAST_TEXT = Operation("flush", lambda _: IncrementalDetokenizer)
SPELLING = Operation("record", lambda _: EchoIndex)
EVENT = Operation("put", lambda _: Delivery)
WAKE_UP = Operation("flush", lambda _: Delivery)

Method = Callable[..., Any]
Breakage = Callable[[Method, tuple[Any, ...]], Any]


def _raise_before(_method: Method, _arguments: tuple[Any, ...]) -> Any:
    raise RuntimeError("injected")


def _raise_after(method: Method, arguments: tuple[Any, ...]) -> Any:
    method(*arguments)
    raise RuntimeError("injected")


def _some_nan(method: Method, arguments: tuple[Any, ...]) -> Any:
    logits = method(*arguments).clone()
    logits[..., 5] = torch.nan
    return logits


def _infinite(method: Method, arguments: tuple[Any, ...]) -> Any:
    logits = method(*arguments).clone()
    logits[..., 5] = torch.inf
    return logits


RAISES = [_raise_before, _raise_after]
SPOILS = [_some_nan, _infinite]


@contextmanager
def _broken(
    bench: EngineBench, operation: Operation, call: int | None, breakage: Breakage | None
) -> Iterator[Counter[str]]:
    """Break one call of an operation inside the block; counts them all."""
    owner: Any = operation.owner(bench)
    is_own = operation.name in vars(owner)
    method = getattr(owner, operation.name)
    counts: Counter[str] = Counter()

    def called(*arguments: Any) -> Any:
        number = counts[operation.name]
        counts[operation.name] += 1
        if number == call and breakage is not None:
            return breakage(method, arguments)
        return method(*arguments)

    setattr(owner, operation.name, called)
    try:
        yield counts
    finally:
        if is_own:
            setattr(owner, operation.name, method)
        else:
            delattr(owner, operation.name)


class Scenario:
    """Three sessions, and then at once: one comes back, one is branched off, one is new."""

    def __init__(self, ids: Callable[[int, int], list[int]], *, is_drawn: bool) -> None:
        self._sampling = DRAWN if is_drawn else REPORTED
        self._first = [ids(seed, 90) for seed in (1, 2, 3)]
        texts = [self._first[0] + ids(4, 40), self._first[1][:80] + ids(5, 9), ids(6, 70)]
        self.asked = [token_prompt(text, len(text) - 4) for text in texts]
        self.kept = [token_prompt(text, 84) for text in self._first]
        self.next_turns = [
            token_prompt([*prompt.token_ids[: prompt.boundary.turn], *ids(7, 12)])
            for prompt in (self.kept[2], *self.asked)
        ]

    def keep(self, bench: EngineBench) -> None:
        bench.run(*self.requests(bench, self.kept))

    def requests(self, bench: EngineBench, prompts: list[Any]) -> list[GenerationRequest]:
        return [bench.request(prompt, max_tokens=3, sampling=self._sampling) for prompt in prompts]


def _ask_at_once(bench: EngineBench, requests: list[GenerationRequest]) -> list[Any]:
    """Send requests in this order before the next step; an item is an answer or an error."""
    hold = bench.runner.before_step = Hold(lambda _: True)

    async def caught(request: GenerationRequest) -> Any:
        try:
            return await bench.ask(request)
        except KvregError as error:
            return error

    async def all_of_them() -> list[Any]:
        tasks: list[asyncio.Task[Any]] = []
        for request in requests:
            tasks.append(asyncio.create_task(caught(request)))
            num_sent = len(tasks)
            await bench.until(
                lambda now: now.running + now.queued == num_sent or not bench.engine.is_alive  # noqa: B023
            )
        hold.release()
        return await asyncio.gather(*tasks)

    return bench.within_limit(all_of_them())


def _check_nothing_is_left(bench: EngineBench) -> None:
    bench.check_at_rest()
    now = bench.engine.snapshot()
    for place in (*now.lanes, *now.entries, *now.anchors):
        if place.sequence_id is not None:
            bench.engine.drop_sequence(place.sequence_id)
    snapshot = bench.engine.snapshot()
    (pool,) = snapshot.pools
    assert (pool.free, pool.referenced, snapshot.state_slots.used) == (pool.total, 0, 0)


@dataclass(frozen=True)
class Broke:
    """An engine after one call of an operation was broken, and what became of the requests."""

    call: int
    bench: EngineBench
    scenario: Scenario
    outcomes: list[Any]


@pytest.fixture
def break_each_call(make_bench, ids) -> Callable[..., Iterator[Broke]]:
    """Plays the scenario on an engine of its own for each call of an operation."""

    def begin(scenario: Scenario) -> EngineBench:
        bench = make_bench(lanes=LANES, entries=ENTRIES, prefill_chunk_tokens=48)
        scenario.keep(bench)
        return bench

    def play(operation: Operation, breakage: Breakage, *, is_drawn: bool = True) -> Iterator[Broke]:
        scenario = Scenario(ids, is_drawn=is_drawn)
        dry = begin(scenario)
        with _broken(dry, operation, None, None) as counts:
            _ask_at_once(dry, scenario.requests(dry, scenario.asked))
        assert counts[operation.name], "the precondition of these tests"
        for call in range(counts[operation.name]):
            bench = begin(scenario)
            with _broken(bench, operation, call, breakage):
                outcomes = _ask_at_once(bench, scenario.requests(bench, scenario.asked))
            yield Broke(call, bench, scenario, outcomes)
            bench.engine.close()

    return play


@dataclass(frozen=True)
class Cold:
    """The answers of a scenario on an engine that keeps nothing."""

    asked: list[list[int]]
    next_turns: list[list[int]]


@pytest.fixture(scope="module")
def cold(tiny, ids) -> Callable[[bool], Cold]:
    """Computes the answers to drawn or greedy requests once."""

    @cache
    def answer(is_drawn: bool) -> Cold:
        scenario = Scenario(ids, is_drawn=is_drawn)
        bench = EngineBench(tiny, entries=0, prefix_reuse=False)
        try:
            asked, next_turns = (
                [answer.tokens for answer in bench.run(*scenario.requests(bench, prompts))]
                for prompts in (scenario.asked, scenario.next_turns)
            )
        finally:
            bench.engine.close()
        return Cold(asked, next_turns)

    return answer


@pytest.fixture
def check(cold, break_each_call) -> Callable[..., None]:
    """What must hold after each call that broke."""

    def check(operation: Operation, breakage: Breakage, *, is_drawn: bool = True) -> None:
        expected = cold(is_drawn)
        for broke in break_each_call(operation, breakage, is_drawn=is_drawn):
            bench, scenario = broke.bench, broke.scenario
            where = f"call {broke.call}"
            assert bench.engine.is_alive, f"{where} has ended the step loop"
            failed = [outcome for outcome in broke.outcomes if isinstance(outcome, KvregError)]
            assert {type(error) for error in failed} <= {RequestFailed}, where
            assert len(failed) <= operation.num_victims, f"{where} was not one request's alone"
            for outcome, tokens in zip(broke.outcomes, expected.asked, strict=True):
                assert outcome in failed or outcome.tokens == tokens, f"{where}: a wrong answer"
            bench.check_at_rest()
            turns = [
                answer.tokens
                for answer in bench.run(*scenario.requests(bench, scenario.next_turns))
            ]
            assert turns == expected.next_turns, f"{where}: a wrong next turn"
            _check_nothing_is_left(bench)

    return check


def _name(value: object) -> str:
    return value.__name__.strip("_") if callable(value) else str(value)


breaks = pytest.mark.parametrize("breakage", RAISES, ids=_name)


@breaks
@pytest.mark.parametrize("operation", [*MOVES, PREFILL, DECODE, DRAW], ids=_name)
def test_failing_operation_costs_its_own_requests(check, operation, breakage):
    check(operation, breakage)


@breaks
def test_failing_choice_of_the_largest_logits_costs_its_own_requests(check, breakage):
    check(GREEDY_CHOICE, breakage, is_drawn=False)


@pytest.mark.parametrize("breakage", SPOILS, ids=_name)
@pytest.mark.parametrize("operation", [PREFILL, DECODE], ids=_name)
@pytest.mark.parametrize("is_drawn", [True, False], ids=["drawn", "greedy"])
def test_logits_that_are_no_numbers_give_no_answer(check, operation, breakage, is_drawn):
    check(operation, breakage, is_drawn=is_drawn)


@breaks
@pytest.mark.parametrize(
    "operation",
    [REPORT, TEXT, LAST_TEXT, SPELLING],
    ids=_name,
)
def test_failure_with_the_text_of_an_answer_costs_its_own_request(check, operation, breakage):
    check(operation, breakage)


@breaks
@pytest.mark.parametrize("operation", [EVENT, WAKE_UP], ids=_name)
def test_nobody_waits_for_ever_for_a_delivery_that_failed(break_each_call, operation, breakage):
    for broke in break_each_call(operation, breakage):
        assert len(broke.outcomes) == len(broke.scenario.asked)
