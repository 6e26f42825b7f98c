"""Prefix matching: which kept state a prompt resumes, and what is reported of it."""

from __future__ import annotations

import pytest

from kvreg_service.core.labels import Attach, ReusePath, StateKind
from kvreg_service.core.requests.identity import Identity

TEXT = list(range(100, 400))
OTHER = [7, 8, 9]


def _frontier_at(core, position, text=TEXT):
    """Keep the end of an answer at ``position`` and nothing else."""
    core.run(text[:position], max_tokens=1)


def _boundary_at(core, position, text=TEXT, **options):
    """Keep a boundary at ``position``, and the end of an answer that the text does not contain."""
    core.run([*text[:position], *OTHER], boundary=position, max_tokens=1, **options)


def test_a_prompt_that_contains_the_whole_answer_appends_to_its_end(make_core):
    core = make_core()
    answer = core.run(TEXT[:200], max_tokens=10).answer
    admission = core.run([*TEXT[:200], *answer, 5]).admission
    # The last sampled token is not computed.
    assert admission.cached_tokens == 209
    assert admission.reuse_path is ReusePath.APPEND_FRONTIER


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (StateKind.TURN, ReusePath.RESTORE_TURN_CHECKPOINT),
        (StateKind.ROUND, ReusePath.RESTORE_TURN_CHECKPOINT),
        (StateKind.RESPONSE, ReusePath.RESTORE_RESPONSE_CHECKPOINT),
    ],
)
def test_a_prompt_without_the_answer_restores_the_boundary(make_core, kind, path):
    core = make_core()
    _boundary_at(core, 200, kind=kind)
    admission = core.run(TEXT[:250]).admission
    assert (admission.cached_tokens, admission.reuse_path) == (200, path)
    assert admission.attach is Attach.NONE


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"heads": (200,)}, ReusePath.RESTORE_ANCHOR),
        ({"branch_points": (200,)}, ReusePath.RESTORE_BRANCH_POINT),
    ],
)
def test_a_shared_state_has_its_own_reuse_path_and_attach(make_core, options, path):
    core = make_core(anchors=1)
    core.run([*TEXT[:200], *OTHER], **options)
    admission = core.run(TEXT[:250]).admission
    assert (admission.cached_tokens, admission.reuse_path) == (200, path)
    assert admission.attach is Attach.ANCHOR


@pytest.mark.parametrize(
    ("appendable", "restorable", "cached", "path"),
    [
        (150, 200, 200, ReusePath.RESTORE_TURN_CHECKPOINT),
        (200, 150, 200, ReusePath.APPEND_FRONTIER),
    ],
    ids=["longer boundary", "longer frontier"],
)
def test_the_longest_reuse_is_chosen(make_core, appendable, restorable, cached, path):
    core = make_core(entries=2)
    # Keep the longer one first, so that the shorter prompt does not hit it.
    keep = [(appendable, _frontier_at), (restorable, _boundary_at)]
    for position, put in sorted(keep, key=lambda one: -one[0]):
        put(core, position)
    admission = core.run(TEXT[:250]).admission
    assert (admission.cached_tokens, admission.reuse_path) == (cached, path)


@pytest.mark.parametrize("length", [199, 200, 201])
def test_at_least_one_token_is_computed(make_core, length):
    core = make_core()
    _frontier_at(core, 200)
    assert core.run(TEXT[:length]).cached == (200 if length > 200 else 0)


def test_an_exact_repeat_restores_the_boundary_before_its_end(make_core):
    core = make_core()
    first = core.run(TEXT[:200], boundary=196)
    again = core.run(TEXT[:200], boundary=196)
    assert again.cached == 196
    assert again.answer == first.answer


@pytest.mark.parametrize("position", [0, 63, 64, 127, 128, 199])
def test_one_different_token_before_the_state_is_a_miss(make_core, position):
    core = make_core()
    _frontier_at(core, 200)
    prompt = TEXT[:250]
    prompt[position] = 9999
    admission = core.run(prompt).admission
    assert admission.reuse_path is ReusePath.FULL_RESET
    assert admission.attach is Attach.NONE
    assert admission.diverged_at == position


def test_a_first_request_reports_no_divergence(make_core):
    assert make_core().run(TEXT).admission.diverged_at is None


def test_a_hit_reports_no_divergence(make_core):
    core = make_core()
    _frontier_at(core, 200)
    assert core.run(TEXT).admission.diverged_at is None


def test_a_hit_reports_how_long_the_state_was_at_rest(make_core):
    core = make_core()
    _frontier_at(core, 200)
    core.now_s += 41.0
    assert core.run(TEXT).admission.gap_s == 42.0
    assert core.run([1] * 50).admission.gap_s is None


@pytest.mark.parametrize(
    "identity", [Identity(b"epoch", "other tenant"), Identity(b"another epoch", "tenant")]
)
@pytest.mark.parametrize("length", [20, 200])
def test_another_identity_never_hits(make_core, identity, length):
    core = make_core(entries=1)
    _frontier_at(core, length)
    admission = core.run(TEXT[: length + 10], identity=identity).admission
    assert (admission.cached_tokens, admission.diverged_at) == (0, None)


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


def test_a_request_that_may_not_reuse_is_computed_as_a_whole(make_core):
    core = make_core()
    _frontier_at(core, 200)
    outcome = core.run(TEXT, may_reuse=False)
    assert outcome.cached == 0
    assert outcome.answer == make_core().run(TEXT).answer


def test_the_boundary_of_a_running_request_is_reused_and_what_it_computes_is_not(make_core):
    core = make_core(lanes=2)
    core.submit(TEXT[:200], boundary=150, max_tokens=50)
    for _ in range(5):
        core.step()
    core.submit(TEXT[:250])
    _, happened = core.step()
    assert happened[0].admission.cached_tokens == 150


def test_two_requests_resume_one_state_at_the_same_time(make_core):
    core = make_core(lanes=2, entries=1)
    _boundary_at(core, 200)
    prompts = [[*TEXT[:200], *[number] * 40] for number in (1, 2)]
    ids = [core.submit(prompt, max_tokens=20) for prompt in prompts]
    core.step()
    core.step()
    assert core.scheduler.num_running == 2
    outcome = core.drain()
    cached = {e.request_id: e.admission.cached_tokens for e in core.log if hasattr(e, "admission")}
    for request_id, prompt in zip(ids, prompts, strict=True):
        answer = [e.token for e in core.log if hasattr(e, "token") and e.request_id == request_id]
        assert answer == make_core().run(prompt, max_tokens=20).answer
        assert cached[request_id] == 200
    assert outcome.events


@pytest.mark.parametrize("tail_tokens", [1, 63, 64, 65])
@pytest.mark.parametrize("position", [128, 150, 191])
def test_a_resumed_request_writes_no_page_of_the_state(make_core, position, tail_tokens):
    core = make_core(entries=2)
    core.run([*TEXT[:position], *OTHER], boundary=position, max_tokens=70)
    first = core.run([*TEXT[:position], *[5] * tail_tokens], boundary=position, max_tokens=70)
    second = core.run([*TEXT[:position], *[6] * tail_tokens], boundary=position, max_tokens=70)
    assert [one.cached for one in (first, second)] == [position] * 2
    for outcome, token in ((first, 5), (second, 6)):
        prompt = [*TEXT[:position], *[token] * tail_tokens]
        assert outcome.answer == make_core().run(prompt, max_tokens=70).answer


def test_a_partial_page_is_copied_for_the_request_and_whole_pages_are_shared(make_core):
    core = make_core(entries=2)
    _boundary_at(core, 150)
    state = core.at(150)
    core.submit([*TEXT[:150], *[5] * 20], max_tokens=20)
    plan, _ = core.step()
    (work,) = plan.work
    assert work.pages[:2] == state.pages[:2]
    assert work.pages[2] != state.pages[2]


def test_the_plan_of_a_request_is_deterministic_and_has_no_effects(make_core):
    core = make_core(lanes=2, entries=2, anchors=1)
    for start in (0, 1000, 2000, 3000):
        core.run(range(start, start + 150), boundary=140, heads=(100,))
    before = repr([vars(state) for state in core.states()])
    for prompt in ([*range(140), 5, 6], [*range(3000, 3150), 7], [9] * 80):
        request = core.request(prompt, boundary=len(prompt) - 1)
        assert core.plan(request) == core.plan(request)
    assert repr([vars(state) for state in core.states()]) == before
    assert not core.scheduler.store.events
