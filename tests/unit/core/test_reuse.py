"""Prefix matching: which kept sequence a prompt resumes, and from which position."""

from __future__ import annotations

import pytest

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.labels import Attach, CheckpointKind, ReusePath

TEXT = list(range(100, 400))
OTHER = [7, 8, 9]


def _frontier_at(core, position, text=TEXT):
    """Keep a sequence that can be resumed at its frontier ``position`` only."""
    core.run(text[:position], max_tokens=1)


def _checkpoint_at(core, position, text=TEXT):
    """Keep a sequence that matches the text up to its checkpoint only."""
    core.run([*text[:position], *OTHER], boundary=position, max_tokens=1)


def test_a_prompt_that_contains_the_whole_frontier_appends_to_it(make_core):
    core = make_core()
    answer = core.run(TEXT[:200], max_tokens=10).answer
    admission = core.run([*TEXT[:200], *answer, 5]).admission
    # The last sampled token is not computed.
    assert admission.cached_tokens == 209
    assert admission.reuse_path is ReusePath.APPEND_FRONTIER


def test_a_prompt_without_the_answer_restores_the_turn_checkpoint(make_core):
    core = make_core()
    _checkpoint_at(core, 200)
    admission = core.run(TEXT[:250]).admission
    assert admission.cached_tokens == 200
    assert admission.reuse_path is ReusePath.RESTORE_TURN_CHECKPOINT


def test_a_response_checkpoint_has_its_own_reuse_path(make_core):
    core = make_core()
    core.run([*TEXT[:200], *OTHER], boundary=200, boundary_kind=CheckpointKind.RESPONSE)
    admission = core.run(TEXT[:250]).admission
    assert admission.reuse_path is ReusePath.RESTORE_RESPONSE_CHECKPOINT


@pytest.mark.parametrize(
    ("appendable", "restorable", "cached", "path"),
    [
        (150, 200, 200, ReusePath.RESTORE_TURN_CHECKPOINT),
        (200, 150, 200, ReusePath.APPEND_FRONTIER),
        (180, 180, 180, ReusePath.APPEND_FRONTIER),
    ],
    ids=["longer checkpoint", "longer frontier", "tie"],
)
def test_the_longest_reuse_is_chosen_and_a_tie_appends(
    make_core, appendable, restorable, cached, path
):
    core = make_core(entries=2)
    # Keep the longer one first, so that the shorter prompt does not hit it.
    keep = [(appendable, _frontier_at), (restorable, _checkpoint_at)]
    for position, put in sorted(keep, key=lambda one: (-one[0], one[1] is _frontier_at)):
        put(core, position)
    assert len(core.kept()) == 2
    admission = core.run(TEXT[:250]).admission
    assert (admission.cached_tokens, admission.reuse_path) == (cached, path)


def test_of_equal_reuse_a_sequence_on_a_lane_is_preferred(make_core):
    core = make_core(lanes=2, entries=1)
    for _ in range(2):
        core.submit([*TEXT[:200], *OTHER], boundary=200)
    core.drain()
    core.run([1] * 70)
    assert {lane.kept is None for lane in core.scheduler.holdings.lanes} == {False}
    assert core.run(TEXT[:250]).admission.attach is Attach.NONE


def test_of_equal_reuse_on_lanes_the_most_recently_used_is_preferred(make_core):
    core = make_core(lanes=2)
    for max_tokens in (2, 10):
        core.submit([*TEXT[:200], *OTHER], boundary=200, max_tokens=max_tokens)
    while core.scheduler.has_work:
        core.step()
        core.now_s += 1.0
    assert core.run(TEXT[:250]).admission.lane == 1


@pytest.mark.parametrize("length", [199, 200, 201])
def test_at_least_one_token_is_computed(make_core, length):
    core = make_core()
    _frontier_at(core, 200)
    assert core.run(TEXT[:length]).cached == (200 if length > 200 else 0)


def test_an_exact_repeat_restores_the_checkpoint_before_its_end(make_core):
    core = make_core()
    first = core.run(TEXT[:200], boundary=196)
    again = core.run(TEXT[:200], boundary=196)
    assert again.cached == 196
    assert again.answer == first.answer


@pytest.mark.parametrize("position", [0, 63, 64, 127, 128, 199])
def test_one_different_token_before_the_frontier_is_a_miss(make_core, position):
    core = make_core()
    _frontier_at(core, 200)
    prompt = TEXT[:250]
    prompt[position] = 9999
    admission = core.run(prompt).admission
    assert admission.reuse_path is ReusePath.FULL_RESET
    assert admission.diverged_at == position


def test_a_first_request_reports_no_divergence(make_core):
    assert make_core().run(TEXT).admission.diverged_at is None


def test_a_hit_reports_no_divergence(make_core):
    core = make_core()
    _frontier_at(core, 200)
    assert core.run(TEXT).admission.diverged_at is None


@pytest.mark.parametrize(
    "identity", [Identity(b"epoch", "other tenant"), Identity(b"another epoch", "tenant")]
)
@pytest.mark.parametrize("length", [20, 200])
def test_another_identity_never_hits(make_core, identity, length):
    core = make_core(entries=1)
    _frontier_at(core, length)
    assert core.run(TEXT[: length + 10], identity=identity).cached == 0


def test_a_miss_of_another_tenant_preserves_the_hit_of_the_owner(make_core):
    core = make_core(entries=1)
    _frontier_at(core, 200)
    core.run(TEXT[:210], identity=Identity(b"epoch", "other tenant"))
    assert core.run(TEXT[:210]).cached == 200


def test_nothing_is_reused_when_reuse_is_off(make_core):
    core = make_core(prefix_reuse=False)
    _frontier_at(core, 200)
    admission = core.run(TEXT).admission
    assert (admission.cached_tokens, admission.reuse_path) == (0, ReusePath.FULL_RESET)


def test_a_running_sequence_is_not_reused(make_core):
    core = make_core(lanes=2)
    core.submit(TEXT[:200], boundary=190, max_tokens=50)
    for _ in range(5):
        core.step()
    core.submit(TEXT[:250])
    _, happened = core.step()
    assert happened[0].admission.cached_tokens == 0


def test_regret_counts_tokens_recomputed_because_current_was_dropped(make_core):
    core = make_core(entries=1, keep_current=False)
    answer = core.run(TEXT[:200], boundary=190, max_tokens=21).answer
    core.run([1] * 70, boundary=60)
    admission = core.run([*TEXT[:200], *answer, 5]).admission
    assert (admission.cached_tokens, admission.regret_tokens) == (190, 30)


def test_a_prompt_that_diverges_before_the_frontier_has_no_regret(make_core):
    core = make_core(entries=1, keep_current=False)
    core.run(TEXT[:200], boundary=190, max_tokens=21)
    core.run([1] * 70, boundary=60)
    assert core.run(TEXT[:260]).admission.regret_tokens == 0


def test_a_prompt_that_ends_at_the_dropped_frontier_has_no_regret(make_core):
    core = make_core(entries=1, keep_current=False)
    answer = core.run(TEXT[:200], boundary=190, max_tokens=21).answer
    core.run([1] * 70, boundary=60)
    admission = core.run([*TEXT[:200], *answer[:-1]]).admission
    assert (admission.cached_tokens, admission.regret_tokens) == (190, 0)


def test_planning_is_deterministic_and_has_no_effects(make_core):
    core = make_core(lanes=2, entries=2)
    for start in (0, 1000, 2000, 3000):
        core.run(list(range(start, start + 150)), boundary=140)
    before = repr(core.kept())
    for prompt in ([*range(140), 5, 6], [*range(3000, 3150), 7], [9] * 80):
        request = core.request(prompt, boundary=len(prompt) - 1)
        assert core.plan(request) == core.plan(request)
    assert repr(core.kept()) == before
    assert not core.scheduler.holdings.events
