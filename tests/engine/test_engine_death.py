"""A crashed, closed or draining engine: pending and new requests fail and do not hang."""

from __future__ import annotations

import asyncio

import pytest
from engine_bench import Hold, token_prompt

from kvreg_service.core.errors import Draining, EngineDown


@pytest.fixture
def crashed(make_bench, ids):
    """A bench whose step loop crashed with two pending requests, and their outcomes."""
    bench = make_bench()
    requests = [bench.request(token_prompt(ids(seed, 50))) for seed in (1, 2)]

    async def scenario():
        hold = Hold(lambda _: True)

        def crash(plan):
            hold(plan)
            raise SystemError("injected")

        bench.runner.before_step = crash
        tasks = [asyncio.create_task(bench.ask(request)) for request in requests]
        await bench.until(lambda now: now.running + now.queued == 2)
        hold.release()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return bench, bench.within_limit(scenario())


def test_running_and_queued_requests_fail_with_engine_down(crashed):
    _, outcomes = crashed

    assert [type(outcome) for outcome in outcomes] == [EngineDown, EngineDown]


def test_crashed_engine_is_neither_alive_nor_ready(crashed):
    bench, _ = crashed

    assert (bench.engine.is_alive, bench.engine.is_ready) == (False, False)


def test_crashed_engine_refuses_new_requests(crashed, ids):
    bench, _ = crashed

    with pytest.raises(EngineDown):
        bench.run(bench.request(token_prompt(ids(3, 50))))


def test_waiting_for_a_crashed_engine_to_become_idle_returns_at_once(crashed):
    bench, _ = crashed

    assert not bench.within_limit(bench.engine.wait_idle(60.0))


def test_crashed_engine_still_returns_a_registry_snapshot(crashed):
    bench, _ = crashed

    assert len(bench.engine.snapshot().lanes) == 1


def test_closing_fails_running_requests(make_bench, ids):
    bench = make_bench()

    async def scenario():
        hold = bench.runner.before_step = Hold(lambda _: True)
        task = asyncio.create_task(bench.ask(bench.request(token_prompt(ids(1, 50)))))
        await hold.reached()
        closing = asyncio.create_task(asyncio.to_thread(bench.engine.close))
        await bench.until(lambda _: not bench.engine.is_ready)
        hold.release()
        await closing
        return await asyncio.gather(task, return_exceptions=True)

    assert [type(outcome) for outcome in bench.within_limit(scenario())] == [EngineDown]


def test_draining_finishes_running_requests_and_refuses_new_ones(make_bench, ids):
    bench = make_bench()

    async def scenario():
        hold = bench.runner.before_step = Hold(lambda _: True)
        running = asyncio.create_task(bench.ask(bench.request(token_prompt(ids(1, 50)))))
        await hold.reached()
        bench.engine.drain()
        late = asyncio.create_task(bench.ask(bench.request(token_prompt(ids(2, 50)))))
        outcomes = await asyncio.gather(late, return_exceptions=True)
        hold.release()
        return await running, outcomes[0]

    answer, refused = bench.within_limit(scenario())

    assert len(answer.tokens) == 12
    assert isinstance(refused, Draining)


def test_draining_with_a_grace_period_is_not_ready_and_still_accepts_requests(make_bench, ids):
    bench = make_bench()
    bench.engine.drain(grace_s=600)
    assert bench.engine.is_draining
    assert not bench.engine.is_ready

    answer = bench.within_limit(bench.ask(bench.request(token_prompt(ids(1, 50)))))

    assert len(answer.tokens) == 12


@pytest.mark.parametrize("order", [(600, 0), (0, 600)])
def test_the_earlier_end_of_two_grace_periods_applies(make_bench, ids, order):
    bench = make_bench()
    for grace_s in order:
        bench.engine.drain(grace_s)

    with pytest.raises(Draining):
        bench.within_limit(bench.ask(bench.request(token_prompt(ids(1, 50)))))
