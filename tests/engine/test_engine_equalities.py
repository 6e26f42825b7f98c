"""Output does not depend on batching, chunking or reuse: greedy decoding, fp64, a real engine."""

from __future__ import annotations

import pytest
from engine_bench import token_prompt

from kvreg_kernels.testing import assert_close
from kvreg_service.model.testing import SAME_STATE_FP64


def _assert_same_final_state(bench, lane, other, other_lane):
    for ours, theirs in zip(bench.state(lane), other.state(other_lane), strict=True):
        assert_close(ours, theirs, SAME_STATE_FP64, f"the state of lane {lane}")


# Prompts shorter than a chunk of the delta rule, around a page, and longer than a prefill chunk.
# Answers end one after the other, so that adjacent and non-adjacent lanes are batched.
_LENGTHS = [(64, 24), (5, 8), (130, 24), (300, 15)]


def _requests(bench, ids, num_lanes):
    return [
        bench.request(token_prompt(ids(seed, length)), max_tokens=max_tokens)
        for seed, (length, max_tokens) in enumerate(_LENGTHS[:num_lanes])
    ]


@pytest.mark.parametrize("num_lanes", [2, 3, 4])
def test_batched_tokens_equal_unbatched_tokens(make_bench, ids, num_lanes):
    together = make_bench(lanes=num_lanes, prefill_chunk_tokens=100)
    answers = together.run_together(*_requests(together, ids, num_lanes))

    assert num_lanes in together.runner.batch_sizes, "precondition of this test"
    for index, answer in enumerate(answers):
        alone = make_bench()
        assert answer.tokens == alone.run(_requests(alone, ids, num_lanes)[index])[0].tokens


@pytest.mark.parametrize("num_lanes", [2, 3, 4])
def test_batched_states_equal_unbatched_states(make_bench, ids, num_lanes):
    together = make_bench(lanes=num_lanes, prefill_chunk_tokens=100)
    requests = _requests(together, ids, num_lanes)
    together.run_together(*requests)

    for index, request in enumerate(requests):
        alone = make_bench()
        alone.run(_requests(alone, ids, num_lanes)[index])
        lane = together.runner.work_of(request.request_id)[0].lane
        _assert_same_final_state(together, lane, alone, 0)


@pytest.mark.parametrize("boundary", [None, 63, 64, 200])
def test_chunked_prefill_equals_a_single_pass(make_bench, ids, boundary):
    prompt = token_prompt(ids(1, 300), boundary)
    chunked, whole = make_bench(prefill_chunk_tokens=64), make_bench(prefill_chunk_tokens=512)

    (ours,), (theirs,) = (bench.run(bench.request(prompt)) for bench in (chunked, whole))

    assert ours.tokens == theirs.tokens
    _assert_same_final_state(chunked, 0, whole, 0)


@pytest.mark.parametrize("is_append", [True, False], ids=["append", "restore"])
@pytest.mark.parametrize("has_side_request", [False, True], ids=["on its lane", "attached"])
@pytest.mark.parametrize("boundary", [90, 128])
def test_reused_prefix_equals_a_cold_run(make_bench, ids, boundary, has_side_request, is_append):
    warm, cold = make_bench(), make_bench(entries=0, prefix_reuse=False)
    first = ids(1, 140)
    (answer,) = warm.run(warm.request(token_prompt(first, boundary)))
    if has_side_request:
        warm.run(warm.request(token_prompt(ids(2, 40))))
    history = [*first, *answer.tokens] if is_append else first[:boundary]
    second = token_prompt([*history, *ids(3, 30)])

    (ours,), (theirs,) = (bench.run(bench.request(second)) for bench in (warm, cold))

    assert ours.admission.cached_tokens > 0, "precondition of this test"
    assert ours.tokens == theirs.tokens
    _assert_same_final_state(warm, 0, cold, 0)


def test_concurrent_turns_of_two_sessions_equal_cold_runs(make_bench, ids):
    both = make_bench(lanes=2, entries=2)
    openings = [ids(1, 100), ids(2, 150)]
    firsts = both.run_together(*(both.request(token_prompt(o, 90)) for o in openings))
    seconds = [
        token_prompt([*opening, *first.tokens, *ids(3, 20)])
        for opening, first in zip(openings, firsts, strict=True)
    ]
    answers = both.run_together(*(both.request(second) for second in seconds))

    for second, answer in zip(seconds, answers, strict=True):
        alone = make_bench(entries=0)
        assert answer.tokens == alone.run(alone.request(second))[0].tokens


@pytest.mark.parametrize("num_lanes", [2, 4])
def test_batched_text_of_the_bundled_model_equals_unbatched_text(make_bench, reference, num_lanes):
    questions = [
        "Repeat these words: falcon river maple 4 harbor.",
        "Count from 3 to 12.",
        "My locker code is 4921.",
        "Review this action: delete all backups of the billing service. Allow or deny?",
    ][:num_lanes]
    together = make_bench(reference, lanes=num_lanes)
    answers = together.run_together(
        *(together.chat([("user", question)], max_tokens=40) for question in questions)
    )

    for question, answer in zip(questions, answers, strict=True):
        alone = make_bench(reference)
        (expected,) = alone.run(alone.chat([("user", question)], max_tokens=40))
        assert answer.text == expected.text
