"""Drop mode: a session loses the end of its answer with its lane, and the loss is counted."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Evicted
from kvreg_service.core.labels import Attach, EvictionReason, ReusePath

TEXT = list(range(100, 400))
SIDE = [1] * 70


def _core(make_core, **options):
    return make_core(**{"entries": 1, "keep_current": False, **options})


def _first_turn(core, **options):
    return core.run(TEXT[:200], boundary=190, max_tokens=21, **options).answer


def test_the_frontier_of_a_session_is_freed_when_another_one_gets_its_lane(make_core):
    core = _core(make_core, entries=2)
    _first_turn(core)
    outcome = core.run(SIDE, boundary=60)
    assert [(event.tokens, event.reason) for event in outcome.of(Evicted)] == [
        (220, EvictionReason.DISPLACED)
    ]
    assert core.kept() == [("turn", 190), ("turn", 60), ("frontier", 73)]


def test_the_frontier_of_the_last_session_on_a_lane_stays(make_core):
    core = _core(make_core)
    answer = _first_turn(core)
    admission = core.run([*TEXT[:200], *answer, 5]).admission
    assert (admission.cached_tokens, admission.reuse_path) == (220, ReusePath.APPEND_FRONTIER)
    assert admission.attach is Attach.NONE


def test_a_request_on_another_lane_displaces_nothing(make_core):
    core = _core(make_core, lanes=2)
    answer = _first_turn(core)
    core.run(SIDE, boundary=60)
    assert core.run([*TEXT[:200], *answer, 5]).cached == 220


def test_a_session_that_is_also_the_last_on_another_lane_keeps_its_frontier(make_core):
    core = _core(make_core, lanes=2, entries=3)
    answer = _first_turn(core)
    for tail in (1, 2):
        core.submit([*TEXT[:190], *[tail] * 20], max_tokens=5)
    core.drain()
    assert len({lane.session for lane in core.scheduler.lanes}) == 1, "precondition of this test"
    core.run(SIDE, boundary=60)
    assert core.run([*TEXT[:200], *answer, 5]).cached == 220


@pytest.mark.parametrize("keep", [True, False])
def test_the_mode_changes_no_answer(make_core, keep):
    core = _core(make_core, keep_current=keep)
    answer = _first_turn(core)
    core.run(SIDE, boundary=60)
    prompt = [*TEXT[:200], *answer, 5]
    outcome = core.run(prompt, boundary=210)
    assert outcome.cached == (220 if keep else 190)
    assert outcome.answer == make_core().run(prompt).answer


def test_regret_counts_the_tokens_that_are_computed_again(make_core):
    core = _core(make_core)
    answer = _first_turn(core)
    core.run(SIDE, boundary=60)
    admission = core.run([*TEXT[:200], *answer, 5]).admission
    assert (admission.cached_tokens, admission.regret_tokens) == (190, 30)


def test_regret_is_counted_once(make_core):
    core = _core(make_core)
    answer = _first_turn(core)
    core.run(SIDE, boundary=60)
    core.run([*TEXT[:200], *answer, 5], may_reuse=True, retain=False)
    core.run(SIDE, boundary=60)
    assert core.run([*TEXT[:200], *answer, 6]).admission.regret_tokens == 0


def test_a_prompt_that_diverges_before_the_dropped_frontier_has_no_regret(make_core):
    core = _core(make_core)
    _first_turn(core)
    core.run(SIDE, boundary=60)
    assert core.run(TEXT[:260]).admission.regret_tokens == 0


def test_a_prompt_that_ends_at_the_dropped_frontier_has_no_regret(make_core):
    core = _core(make_core)
    answer = _first_turn(core)
    core.run(SIDE, boundary=60)
    admission = core.run([*TEXT[:200], *answer[:-1]]).admission
    assert (admission.cached_tokens, admission.regret_tokens) == (190, 0)


def test_a_frontier_that_was_freed_for_its_slot_is_no_regret(make_core):
    core = make_core(entries=0)
    answer = core.run(TEXT[:200], boundary=190, max_tokens=21).answer
    core.run([2] * 150, boundary=140)
    assert not [one for one in core.kept() if one[1] == 220], "precondition of this test"
    assert core.run([*TEXT[:200], *answer, 5]).admission.regret_tokens == 0


def test_a_dropped_frontier_frees_its_slot_and_the_pages_behind_the_boundary(make_core):
    core = _core(make_core)
    core.run([*TEXT[:100], 7], boundary=100, max_tokens=200)
    core.run(SIDE, boundary=60, retain=False)
    assert [len(state.pages) for state in core.states()] == [2]
    assert core.scheduler.store.pages.num_free == core.num_pages - 2


@pytest.mark.parametrize(("keep", "cached"), [(True, 153), (False, 0)])
def test_a_session_without_a_boundary_survives_its_lane_only_in_keep_mode(make_core, keep, cached):
    core = _core(make_core, keep_current=keep)
    answer = core.run(TEXT[:150], max_tokens=4).answer
    core.run(SIDE, boundary=60)
    assert core.run([*TEXT[:150], *answer, 5]).cached == cached
