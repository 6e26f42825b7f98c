"""Cancelling a request in any phase frees its lane and pages and affects no other request."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from engine_bench import Hold, token_prompt

from kvreg_service.core.requests.request import CachePolicy
from kvreg_service.engine.interface.generation import TextDelta


async def _cancel(task: asyncio.Task) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _prefills_beyond(start: int):
    return lambda plan: any(work.start >= start and not work.is_decode for work in plan.work)


def _cancel_in_queue(bench, first, second):
    """Run the first request, and cancel the second while it waits for the lane."""

    async def scenario():
        hold = bench.runner.before_step = Hold(lambda _: True)
        running = asyncio.create_task(bench.ask(first))
        await hold.reached()
        queued = asyncio.create_task(bench.ask(second))
        await bench.until(lambda now: now.queued == 1)
        await _cancel(queued)
        hold.release()
        return await running

    return bench.within_limit(scenario())


def _cancel_in_prefill(bench, request, start: int):
    async def scenario():
        hold = bench.runner.before_step = Hold(_prefills_beyond(start))
        task = asyncio.create_task(bench.ask(request))
        await hold.reached()
        await _cancel(task)
        hold.release()

    bench.within_limit(scenario())


def _cancel_in_decode(bench, request, num_tokens: int):
    async def scenario():
        events = bench.engine.generate(request)
        seen = 0
        async for event in events:
            seen += isinstance(event, TextDelta)
            if seen == num_tokens:
                break
        await events.aclose()

    bench.within_limit(scenario())


def test_request_cancelled_in_the_queue_is_never_computed(make_bench, ids):
    bench = make_bench()
    first, second = (bench.request(token_prompt(ids(seed, 100))) for seed in (1, 2))
    _cancel_in_queue(bench, first, second)

    bench.check_at_rest()
    assert bench.runner.work_of(second.request_id) == []


def test_request_cancelled_in_the_queue_does_not_affect_the_running_one(make_bench, ids):
    bench, alone = make_bench(), make_bench()
    first, second = (bench.request(token_prompt(ids(seed, 100))) for seed in (1, 2))
    answer = _cancel_in_queue(bench, first, second)
    (expected,) = alone.run(alone.request(token_prompt(ids(1, 100))))

    assert answer.tokens == expected.tokens


def test_request_cancelled_in_prefill_stops_after_the_current_step(make_bench, ids):
    bench = make_bench(prefill_chunk_tokens=64)
    request = bench.request(token_prompt(ids(1, 300)))
    _cancel_in_prefill(bench, request, 64)

    bench.check_at_rest()
    assert [work.start for work in bench.runner.work_of(request.request_id)] == [0, 64]


def test_request_cancelled_in_prefill_keeps_its_computed_tokens(make_bench, ids):
    bench, cold = make_bench(prefill_chunk_tokens=64), make_bench()
    prompt = token_prompt(ids(1, 300))
    _cancel_in_prefill(bench, bench.request(prompt), 64)
    bench.check_at_rest()
    (again,) = bench.run(bench.request(prompt))
    (expected,) = cold.run(cold.request(prompt))

    assert (again.admission.cached_tokens, again.admission.reuse_path) == (128, "append_frontier")
    assert again.tokens == expected.tokens


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_request_cancelled_in_decode_frees_its_lane(make_bench, ids, num_tokens):
    bench = make_bench()
    request = bench.request(token_prompt(ids(1, 100)), max_tokens=1000)
    _cancel_in_decode(bench, request, num_tokens)

    bench.check_at_rest()
    assert len(bench.runner.tokens[request.request_id]) < 1000


def test_session_cancelled_in_decode_is_reusable_from_its_boundary(make_bench, ids):
    bench, cold = make_bench(), make_bench()
    _cancel_in_decode(bench, bench.request(token_prompt(ids(1, 100), 90), max_tokens=1000), 5)
    bench.check_at_rest()
    second = token_prompt([*ids(1, 100)[:90], *ids(2, 30)])
    (answer,) = bench.run(bench.request(second))
    (expected,) = cold.run(cold.request(second))

    assert answer.admission.cached_tokens == 90
    assert answer.tokens == expected.tokens


def test_cancelled_unretained_request_frees_all_pages(make_bench, ids):
    bench = make_bench()
    request = bench.request(
        token_prompt(ids(1, 100)), max_tokens=1000, cache_policy=CachePolicy(retain=False)
    )
    _cancel_in_decode(bench, request, 3)

    bench.check_at_rest()
    (pool,) = bench.engine.snapshot().pools
    assert pool.free == pool.total


def test_cancelled_request_does_not_affect_a_concurrent_one(make_bench, ids):
    bench, alone = make_bench(lanes=2), make_bench()
    left, stayed = (
        bench.request(token_prompt(ids(seed, 100)), max_tokens=limit)
        for seed, limit in ((1, 1000), (2, 40))
    )

    async def scenario():
        hold = bench.runner.before_step = Hold(lambda _: True)
        tasks = [asyncio.create_task(bench.ask(request)) for request in (left, stayed)]
        await bench.until(lambda now: now.running + now.queued == 2)
        hold.release()
        await bench.until(lambda now: all(lane.state == "decode" for lane in now.lanes))
        await _cancel(tasks[0])
        return await tasks[1]

    answer = bench.within_limit(scenario())
    (expected,) = alone.run(alone.request(token_prompt(ids(2, 100)), max_tokens=40))

    bench.check_at_rest()
    assert answer.tokens == expected.tokens
