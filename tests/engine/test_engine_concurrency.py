"""Continuous batching: one decode batch per step, chunked prefill beside it, queue order.

The tests check the step plans that a real engine executed. They measure no time.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from engine_bench import Hold, token_prompt

CHUNK_TOKENS = 64


def _begun_at(plans):
    """Return the index of the step with the first token of each request."""
    begun = {}
    for index, plan in enumerate(plans):
        for work in plan.work:
            if work.samples:
                begun.setdefault(work.request_id, index)
    return begun


def _prefill_tokens(plans):
    """Return the prompt tokens computed in each step, by request."""
    begun = _begun_at(plans)
    return [
        {
            work.request_id: len(work.token_ids)
            for work in plan.work
            if index <= begun.get(work.request_id, index)
        }
        for index, plan in enumerate(plans)
    ]


def _crowd(bench, ids, count, *, seed=0):
    """Return requests of varying length that decode longer than eight prefills take."""
    rng = Random(seed)
    lengths = [rng.choice((5, 64, 65, 130, 190)) for _ in range(count)]
    return [
        bench.request(token_prompt(ids(100 * seed + number, length), length // 2), max_tokens=60)
        for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("num_lanes", range(1, 9))
def test_decoding_requests_get_a_token_in_every_step(make_bench, ids, num_lanes):
    bench = make_bench(lanes=num_lanes, prefill_chunk_tokens=CHUNK_TOKENS, num_pages=256)
    bench.run_together(*_crowd(bench, ids, 2 * num_lanes))

    plans = bench.runner.plans
    assert num_lanes in bench.runner.batch_sizes, "precondition of this test"
    for request_id, begun in _begun_at(plans).items():
        steps = [
            index
            for index, plan in enumerate(plans)
            if any(work.request_id == request_id and work.samples for work in plan.work)
        ]
        assert steps == list(range(begun, begun + 60))
    bench.check_at_rest()


@pytest.mark.parametrize("num_lanes", range(1, 9))
def test_decoding_requests_are_batched_in_one_call(make_bench, ids, num_lanes, monkeypatch):
    bench = make_bench(lanes=num_lanes, prefill_chunk_tokens=CHUNK_TOKENS, num_pages=256)
    decode, batches = bench.model.decode, []

    def counted(tokens, *rest):
        batches.append(len(tokens))
        return decode(tokens, *rest)

    monkeypatch.setattr(bench.model, "decode", counted)
    bench.run_together(*_crowd(bench, ids, 2 * num_lanes))

    planned = [sum(work.is_decode for work in plan.work) for plan in bench.runner.plans]
    assert batches == [count for count in planned if count]
    assert max(batches) == num_lanes


@pytest.mark.parametrize("num_lanes", [2, 3, 4, 8])
def test_concurrent_requests_have_the_tokens_of_sequential_ones(make_bench, ids, num_lanes):
    crowd = make_bench(lanes=num_lanes, prefill_chunk_tokens=CHUNK_TOKENS, num_pages=256)
    answers = crowd.run_together(*_crowd(crowd, ids, 2 * num_lanes, seed=1))
    alone = make_bench(entries=0, prefix_reuse=False)
    expected = alone.run(*_crowd(alone, ids, 2 * num_lanes, seed=1))

    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]


def _run_beside_a_stream(bench, stream, others):
    """Queue the other requests, in order, between two decode steps of the stream."""

    async def all_of_them():
        hold = Hold(lambda plan: any(work.is_decode for work in plan.work))
        bench.runner.before_step = hold
        tasks = [asyncio.create_task(bench.ask(stream))]
        await hold.reached()
        for count, other in enumerate(others, 1):
            tasks.append(asyncio.create_task(bench.ask(other)))
            await bench.until(lambda now, count=count: now.queued == count)
        hold.release()
        return await asyncio.gather(*tasks)

    return bench.within_limit(all_of_them())


@pytest.mark.parametrize("num_waiting", [1, 4, 10])
@pytest.mark.parametrize(("num_lanes", "chunk_tokens"), [(2, 64), (4, 64), (4, 192), (8, 128)])
def test_at_most_one_chunk_is_prefilled_between_two_tokens_of_a_stream(
    make_bench, ids, num_lanes, chunk_tokens, num_waiting
):
    bench = make_bench(lanes=num_lanes, prefill_chunk_tokens=chunk_tokens, num_pages=256)
    stream = bench.request(token_prompt(ids(1, 40)), max_tokens=150)
    lengths = [Random(number).randrange(200, 600) for number in range(num_waiting)]
    others = [
        bench.request(token_prompt(ids(10 + number, length), length - 70), max_tokens=3)
        for number, length in enumerate(lengths)
    ]
    _run_beside_a_stream(bench, stream, others)

    between, prefilled = [], 0
    for plan, prompts in zip(bench.runner.plans, _prefill_tokens(bench.runner.plans), strict=True):
        if any(work.request_id == stream.request_id and work.samples for work in plan.work):
            between.append(prefilled)
            prefilled = 0
        prefilled += sum(prompts.values())
    assert len(between) == 150
    # The first item is the prompt of the stream itself.
    assert sum(between[1:]) == sum(lengths) + 40, "precondition of this test"
    assert max(between[1:]) <= chunk_tokens


@pytest.mark.parametrize("num_ahead", [0, 3, 10])
@pytest.mark.parametrize("num_lanes", [1, 2, 4])
def test_short_prompt_does_not_wait_for_later_prompts(make_bench, ids, num_lanes, num_ahead):
    bench = make_bench(lanes=num_lanes, prefill_chunk_tokens=CHUNK_TOKENS, num_pages=256)
    stream = bench.request(token_prompt(ids(1, 40)), max_tokens=10)
    ahead, behind = (
        [bench.request(token_prompt(ids(first + n, 300)), max_tokens=3) for n in range(count)]
        for first, count in ((10, num_ahead), (30, 10))
    )
    short = bench.request(token_prompt(ids(50, 20)), max_tokens=3)
    _run_beside_a_stream(bench, stream, [*ahead, short, *behind])

    plans = bench.runner.plans
    until_short = _prefill_tokens(plans)[: _begun_at(plans)[short.request_id]]
    computed = {request_id for step in until_short for request_id in step}
    assert computed.isdisjoint(request.request_id for request in behind)


PROFILES = pytest.mark.parametrize(
    "profile",
    [
        {"lanes": 1, "entries": 1},
        {"lanes": 1, "entries": 2, "keep_current": False},
        {"lanes": 2, "entries": 0},
        {"lanes": 2, "entries": 1, "keep_current": False},
        {"lanes": 4, "entries": 2},
    ],
    ids=str,
)


@PROFILES
@pytest.mark.parametrize("is_same", [True, False], ids=["same prompt", "same history"])
def test_two_concurrent_turns_of_one_session_have_the_tokens_of_cold_runs(
    make_bench, ids, profile, is_same
):
    bench = make_bench(**profile)
    (first,) = bench.run(bench.request(token_prompt(ids(1, 140), 128)))
    history = [*ids(1, 140), *first.tokens]
    prompts = [[*history, *ids(seed, 30)] for seed in (2, 2 if is_same else 3)]
    answers = bench.run_together(*(bench.request(token_prompt(p, 160)) for p in prompts))

    assert max(answer.admission.cached_tokens for answer in answers) > 0, (
        "precondition of this test"
    )
    alone = make_bench(entries=0, prefix_reuse=False)
    expected = alone.run(*(alone.request(token_prompt(prompt)) for prompt in prompts))
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    bench.check_at_rest()


@PROFILES
def test_turn_concurrent_with_the_previous_one_has_the_tokens_of_a_cold_run(
    make_bench, ids, profile
):
    bench = make_bench(**profile)
    first = bench.request(token_prompt(ids(1, 140), 128), max_tokens=40)
    num_sent = 10

    async def both():
        hold = Hold(lambda _: len(bench.runner.tokens.get(first.request_id, ())) == num_sent)
        bench.runner.before_step = hold
        running = asyncio.create_task(bench.ask(first))
        await hold.reached()
        sent = bench.runner.tokens[first.request_id][:num_sent]
        prompt = [*ids(1, 140), *sent, *ids(2, 30)]
        second = asyncio.create_task(bench.ask(bench.request(token_prompt(prompt, 160))))
        await bench.until(lambda now: now.queued == 1)
        hold.release()
        return prompt, await running, await second

    prompt, first_answer, second_answer = bench.within_limit(both())

    alone = make_bench(entries=0, prefix_reuse=False)
    expected_first, expected_second = alone.run(
        alone.request(token_prompt(ids(1, 140)), max_tokens=40),
        alone.request(token_prompt(prompt)),
    )
    assert first_answer.tokens == expected_first.tokens
    assert second_answer.tokens == expected_second.tokens
    bench.check_at_rest()
