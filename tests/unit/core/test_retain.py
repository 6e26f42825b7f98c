"""A request with ``retain=False`` keeps nothing, and frees nothing that it does not need."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import StateKept

SESSION = list(range(200))
TURN = [*SESSION, 1, 2]
ONE_SHOT = [9] * 100


def _with_session(make_core, **options):
    core = make_core(**options)
    core.run(TURN, boundary=200)
    return core


def test_an_unretained_request_is_not_kept(make_core):
    core = make_core(entries=1)
    outcome = core.run(ONE_SHOT, boundary=90, retain=False)
    assert not outcome.of(StateKept)
    assert core.sessions() == []
    assert core.run(ONE_SHOT, boundary=90, retain=False).cached == 0


def test_the_slots_and_pages_of_an_unretained_request_are_freed(make_core):
    core = make_core()
    core.run(ONE_SHOT, boundary=90, retain=False)
    assert core.scheduler.store.pages.num_free == core.num_pages
    assert core.scheduler.store.slots.num_free == core.layout.num_slots
    assert core.scheduler.store.sessions == []


def test_an_unretained_request_captures_neither_heads_nor_branch_points(make_core):
    core = _with_session(make_core, entries=2, anchors=2)
    prompt = [*SESSION[:100], *[8] * 100]
    outcome = core.run(prompt, boundary=150, heads=(64,), branch_points=(120,), retain=False)
    assert not outcome.of(StateKept)


@pytest.mark.parametrize("keep", [True, False])
def test_many_unretained_requests_preserve_the_kept_session(make_core, keep):
    core = _with_session(make_core, entries=1, keep_current=keep)
    for number in range(50):
        core.run([1000 + number] * 120, boundary=100, retain=False)
    assert core.run([*SESSION, 5, 6], boundary=200).cached == 200


def test_an_unretained_request_reuses_a_kept_prefix(make_core):
    core = _with_session(make_core)
    assert core.run([*SESSION, 7, 7, 7], retain=False).cached == 200


@pytest.mark.parametrize("is_on_lane", [True, False])
def test_a_session_that_an_unretained_request_resumes_keeps_its_states(make_core, is_on_lane):
    core = make_core(entries=2)
    answer = core.run(TURN, boundary=200).answer
    if not is_on_lane:
        core.run(ONE_SHOT)
    before = core.kept()
    for tail in ([7, 7], [8, 8]):
        prompt = [*TURN, *answer[:-1], *tail]
        outcome = core.run(prompt, retain=False)
        assert (outcome.cached, outcome.answer) == (205, make_core().run(prompt).answer)
        assert core.kept() == before


def test_the_boundary_stays_when_there_is_no_room_for_a_copy(make_core):
    """With one lane and no entries the request takes the other slot of the two."""
    core = _with_session(make_core)
    core.run([*SESSION, 7, 7, 7], boundary=202, retain=False)
    assert core.kept() == [("turn", 200)]
    assert core.run([*SESSION, 5, 6], boundary=200).cached == 200


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_cancelling_an_unretained_request_keeps_nothing_of_it(make_core, num_steps):
    core = _with_session(make_core, chunk_tokens=20)
    request_id = core.submit([*SESSION, *[7] * 50], retain=False, max_tokens=50)
    for _ in range(num_steps):
        core.step()
    core.scheduler.cancel(request_id, core.now_s)
    core.check()
    assert core.kept() == [("turn", 200)]
    assert core.run([*SESSION, 5, 6], boundary=200).cached == 200


def test_an_unretained_request_sets_neither_priority_nor_marks_of_what_it_resumes(make_core):
    core = make_core(entries=1, anchors=1)
    core.run(TURN, boundary=200, heads=(100,), priority=3)
    core.run([*SESSION, 7], retain=False, priority=9, heads=(100,), marks_heads=True)
    assert not core.at(100).is_marked
    assert [one.priority for one in core.sessions() if not one.is_shared] == [3]
