"""Requests that an engine refuses without affecting others, and requests during a step."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from engine_bench import Hold, token_prompt

from kvreg_service.core.errors import Conflict, InvalidRequest, Overloaded, SessionNotFound


def test_a_request_id_that_is_still_running_is_a_conflict(make_bench, ids):
    bench = make_bench()
    first = bench.request(token_prompt(ids(1, 40), 30))

    async def scenario():
        hold = bench.runner.before_step = Hold(lambda _: True)
        running = asyncio.create_task(bench.ask(first))
        await hold.reached()
        with pytest.raises(Conflict, match=first.request_id):
            await bench.ask(replace(first, prompt=token_prompt(ids(2, 40), 30)))
        hold.release()
        return await running

    answer = bench.within_limit(scenario())
    (wanted,) = make_bench().run(first)
    assert answer.tokens == wanted.tokens
    bench.check_at_rest()


def test_a_full_queue_raises_before_a_prompt_is_built(make_bench, ids):
    bench = make_bench(queue_limit=1)
    requests = [bench.request(token_prompt(ids(seed, 40), 30)) for seed in (1, 2)]

    async def scenario():
        hold = bench.runner.before_step = Hold(lambda _: True)
        bench.engine.require_room()
        running = asyncio.create_task(bench.ask(requests[0]))
        await hold.reached()
        queued = asyncio.create_task(bench.ask(requests[1]))
        await bench.until(lambda now: now.queued == 1)
        with pytest.raises(Overloaded):
            bench.engine.require_room()
        hold.release()
        await asyncio.gather(running, queued)
        bench.engine.require_room()

    bench.within_limit(scenario())


def test_a_queue_limit_of_zero_still_serves_idle_lanes(make_bench, ids):
    bench = make_bench(lanes=2, queue_limit=0)
    requests = [bench.request(token_prompt(ids(seed, 40), 30)) for seed in (1, 2)]
    assert len(bench.run_together(*requests)) == 2


def test_an_inconsistent_profile_is_an_invalid_request(make_bench):
    engine = make_bench(entries=0, prefix_reuse=False).engine
    with pytest.raises(InvalidRequest, match="prefix_reuse"):
        engine.fit(lanes=1, entries=1, keep_current=True)


def test_dropping_an_entry_during_a_step_does_not_affect_the_running_request(make_bench, ids):
    bench = make_bench()
    first, second, third = (bench.request(token_prompt(ids(n, 40), 30)) for n in (1, 2, 3))
    bench.run(first, second)

    async def scenario():
        hold = bench.runner.before_step = Hold(lambda _: True)
        running = asyncio.create_task(bench.ask(third))
        await hold.reached()
        kept = bench.engine.snapshot().entries[0].sequence_id
        bench.engine.drop_sequence(kept)
        with pytest.raises(SessionNotFound):
            bench.engine.drop_sequence(kept)
        hold.release()
        return await running

    assert bench.within_limit(scenario()).admission.prompt_tokens == 40
    bench.check_at_rest()


def test_text_does_not_wait_for_the_chunk_of_another_request(make_bench, ids, monkeypatch):
    """A step with prefill first delivers the tokens sampled in earlier steps."""
    bench = make_bench(lanes=2)
    streamed = bench.request(token_prompt(ids(1, 40), 30), max_tokens=50)
    other = bench.request(token_prompt(ids(2, 40), 30))
    seen = []

    async def stream():
        async for event in bench.engine.generate(streamed):
            seen.append(event)

    async def scenario():
        decode = bench.runner.before_step = Hold(lambda plan: any(w.start > 60 for w in plan.work))
        streaming = asyncio.create_task(stream())
        await decode.reached()
        prefill = Hold(lambda plan: plan.has_prefill)
        bench.runner.before_step = prefill
        is_due = bench.engine._output._delivery.is_due
        monkeypatch.setattr(bench.engine._output._delivery, "is_due", lambda _: False)
        waiting = asyncio.create_task(bench.ask(other))
        await bench.until(lambda now: now.queued == 1)
        before = len(seen)
        decode.release()
        await prefill.reached()
        await asyncio.sleep(0)
        sent = len(seen) - before
        monkeypatch.setattr(bench.engine._output._delivery, "is_due", is_due)
        prefill.release()
        await asyncio.gather(streaming, waiting)
        return sent

    assert bench.within_limit(scenario()) > 0


@pytest.mark.parametrize("anchors", [0, 3, 7])
def test_fit_counts_the_requested_anchors(make_bench, anchors):
    engine = make_bench(entries=1).engine

    def required(**profile):
        return engine.fit(lanes=1, entries=1, keep_current=True, **profile).required_bytes

    slot_bytes = required(anchors=1) - required(anchors=0)
    assert slot_bytes > 0
    assert required(anchors=anchors) == required(anchors=0) + anchors * slot_bytes


def test_fit_defaults_to_the_anchors_of_the_engine(make_bench):
    engine = make_bench(entries=1, anchors=5).engine
    profile = {"lanes": 1, "entries": 1, "keep_current": True}
    assert engine.fit(**profile) == engine.fit(**profile, anchors=5)
