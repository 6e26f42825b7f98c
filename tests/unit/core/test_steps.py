"""The contents of one step: at most one chunk of prefill, all decodes."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.events import Finished, TokenSampled
from kvreg_service.core.labels import FinishReason


def _chunks(outcome, request_id=None) -> list[tuple[int, int]]:
    return [
        (work.start, work.end)
        for plan in outcome.steps
        for work in plan.work
        if request_id in (None, work.request_id)
    ]


@pytest.mark.parametrize(
    ("boundary", "chunks"),
    [
        (None, [(0, 100), (100, 200), (200, 250)]),
        (150, [(0, 100), (100, 150), (150, 250)]),
        (200, [(0, 100), (100, 200), (200, 250)]),
        (1, [(0, 1), (1, 101), (101, 201), (201, 250)]),
        (249, [(0, 100), (100, 200), (200, 249), (249, 250)]),
    ],
)
def test_prefill_is_chunked_and_stops_where_a_state_is_captured(make_core, boundary, chunks):
    core = make_core(chunk_tokens=100)
    assert _chunks(core.run(range(250), boundary=boundary, max_tokens=1)) == chunks


def test_only_the_last_chunk_samples(make_core):
    outcome = make_core(chunk_tokens=100).run(range(250), max_tokens=1)
    assert [work.samples for plan in outcome.steps for work in plan.work] == [False, False, True]


def test_chunked_prefill_has_the_output_of_a_single_pass(make_core):
    whole = make_core().run(range(250), max_tokens=20)
    chunked = make_core(chunk_tokens=7).run(range(250), max_tokens=20, boundary=100)
    assert chunked.answer == whole.answer


def test_a_step_has_all_decodes_and_at_most_one_chunk(make_core):
    core = make_core(lanes=3, chunk_tokens=100)
    ids = [core.submit([number] * 40, max_tokens=50) for number in range(2)]
    for _ in range(4):
        core.step()
    ids.append(core.submit(range(500, 750), max_tokens=50))
    for start in (0, 100, 200):
        plan, _ = core.step()
        work = {one.request_id: len(one.token_ids) for one in plan.work}
        assert work == {ids[0]: 1, ids[1]: 1, ids[2]: min(100, 250 - start)}


def test_the_oldest_request_prefills_first(make_core):
    core = make_core(lanes=2, chunk_tokens=100)
    first = core.submit(range(250))
    core.now_s = 1.0
    second = core.submit(range(500, 750))
    outcome = core.drain()
    order = [work.request_id for plan in outcome.steps for work in plan.work]
    assert order[:4] == [first, first, first, second]


def test_the_rest_of_a_chunk_goes_to_the_next_request(make_core):
    core = make_core(lanes=2, chunk_tokens=100)
    first = core.submit(range(120))
    second = core.submit(range(500, 700))
    core.step()
    plan, _ = core.step()
    assert {work.request_id: len(work.token_ids) for work in plan.work} == {first: 20, second: 80}


def test_a_chunk_of_one_token_inside_a_prompt_is_not_a_decode(make_core):
    core = make_core(lanes=2, chunk_tokens=48)
    core.run(range(90), boundary=84)
    core.submit(range(500, 595))
    core.now_s += 1
    resumed = core.submit([*range(84), *range(900, 940)])
    works = [work for plan in core.drain().steps for work in plan.work]
    (lone,) = [w for w in works if w.request_id == resumed and (w.start, w.end) == (84, 85)]
    assert not lone.samples
    assert not lone.is_decode


def test_one_request_is_admitted_to_a_lane_per_step(make_core):
    core = make_core(lanes=3)
    ids = [core.submit([number] * 40) for number in range(3)]
    prepared = [core.step()[0].preparation.request_id for _ in range(3)]
    assert prepared == ids


def test_batched_output_equals_unbatched_output(make_core):
    core = make_core(lanes=3, chunk_tokens=50)
    prompts = [[number] * (60 + 17 * number) for number in range(3)]
    ids = [core.submit(prompt, max_tokens=20) for prompt in prompts]
    outcome = core.drain()
    for request_id, prompt in zip(ids, prompts, strict=True):
        tokens = [
            event.token
            for event in outcome.events
            if isinstance(event, TokenSampled) and event.request_id == request_id
        ]
        assert tokens == make_core().run(prompt, max_tokens=20).answer


def test_an_idle_scheduler_plans_nothing(make_core):
    plan, happened = make_core().step()
    assert plan.is_empty
    assert happened == []


@pytest.mark.parametrize("max_tokens", [1, 2, 50])
def test_generation_ends_at_max_tokens(make_core, max_tokens):
    outcome = make_core().run(range(100), max_tokens=max_tokens)
    assert len(outcome.answer) == max_tokens
    assert outcome.terminal.reason is FinishReason.LENGTH


def test_a_stop_token_ends_generation_and_is_counted(make_core):
    free = make_core().run(range(100), max_tokens=20).answer
    outcome = make_core().run(range(100), max_tokens=20, stop_token_ids=frozenset({free[4]}))
    assert outcome.answer == free[:5]
    assert outcome.terminal == Finished(outcome.terminal.request_id, FinishReason.STOP, 5)


def test_a_stop_string_found_by_the_runner_ends_generation(make_core):
    core = make_core()
    request_id = core.submit(range(100), max_tokens=20)
    plan = core.scheduler.schedule(0.0)
    result = core.runner.execute(plan)
    result.stopped.add(request_id)
    happened = core.scheduler.commit(plan, result, 0.0)
    assert happened[-1] == Finished(request_id, FinishReason.STOP, 1)


def test_the_last_sampled_token_is_not_in_the_kept_state(make_core):
    core = make_core()
    answer = core.run(range(100), max_tokens=5).answer
    (state,) = core.states()
    assert state.position == 104
    assert list(state.ledger.tokens[:104]) == [*range(100), *answer[:-1]]


def test_cached_and_computed_tokens_add_up_to_the_prompt(make_core):
    core = make_core(chunk_tokens=30)
    core.run(range(150), boundary=100)
    before = core.runner.computed_tokens
    outcome = core.run([*range(100), *[7] * 80], max_tokens=1)
    assert outcome.cached + core.runner.computed_tokens - before == 180


def test_a_pool_smaller_than_one_full_context_is_refused(make_core):
    with pytest.raises(ConfigurationError):
        make_core(num_pages=31, max_context_tokens=2048)
