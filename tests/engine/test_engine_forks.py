"""Two prompts that fork from one session have the tokens and states of a cold run.

States are compared because tokens can be equal even if a few keys are wrong.
"""

from __future__ import annotations

import pytest
from engine_bench import token_prompt

from kvreg_kernels.testing import assert_close
from kvreg_service.model.testing import SAME_STATE_FP64

BOUNDARY = 100


def _assert_as_cold(make_bench, bench, prompt, answer):
    cold = make_bench(entries=0, prefix_reuse=False)
    (expected,) = cold.run(cold.request(prompt))
    assert answer.tokens == expected.tokens
    for ours, theirs in zip(bench.state(0), cold.state(0), strict=True):
        assert_close(ours, theirs, SAME_STATE_FP64, "the state after the answer")


@pytest.mark.parametrize("keep_current", [True, False], ids=["keep", "drop"])
@pytest.mark.parametrize("first_length", [103, 128, 192])
def test_session_is_resumed_from_its_fork(make_bench, ids, first_length, keep_current):
    """A side request that starts with the session's history overwrites its checkpoint."""
    bench = make_bench(keep_current=keep_current)
    first = ids(1, first_length)
    (answer,) = bench.run(bench.request(token_prompt(first, BOUNDARY), max_tokens=30))
    side = [*first, *answer.tokens, *ids(2, 40)]
    bench.run(bench.request(token_prompt(side, len(side) - 1)))
    second = token_prompt([*first[:BOUNDARY], *ids(3, 30)])
    (ours,) = bench.run(bench.request(second))

    assert (ours.admission.attach, ours.admission.cached_tokens) == ("registry", BOUNDARY)
    _assert_as_cold(make_bench, bench, second, ours)


def test_session_appends_to_the_frontier_of_its_fork(make_bench, ids):
    """The side request restored the checkpoint and wrote other tokens after it."""
    bench = make_bench()
    first = ids(1, BOUNDARY + 3)
    (answer,) = bench.run(bench.request(token_prompt(first, BOUNDARY), max_tokens=60))
    side = [*first[:BOUNDARY], *ids(2, 90)]
    bench.run(bench.request(token_prompt(side, len(side) - 1)))
    going_on = token_prompt([*first, *answer.tokens, 7])
    (ours,) = bench.run(bench.request(going_on))

    assert ours.admission.reuse_path == "append_frontier"
    _assert_as_cold(make_bench, bench, going_on, ours)


def test_resuming_one_branch_does_not_change_the_other(make_bench, ids):
    """Both branches share the page that contains the checkpoint of the older one."""
    bench = make_bench()
    first = ids(1, BOUNDARY + 3)
    (answer,) = bench.run(bench.request(token_prompt(first, BOUNDARY), max_tokens=60))
    trunk = [*first, *answer.tokens, *ids(2, 120)]
    bench.run(bench.request(token_prompt([*trunk, 1], len(trunk))))
    bench.run(bench.request(token_prompt([*first[:BOUNDARY], 4, 5, 6], BOUNDARY)))
    going_on = token_prompt([*trunk, 9], len(trunk))
    (ours,) = bench.run(bench.request(going_on))

    assert ours.admission.cached_tokens == len(trunk)
    _assert_as_cold(make_bench, bench, going_on, ours)
