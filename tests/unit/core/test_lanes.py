"""Lane selection for a request, and what displaces a session from its lane."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Admitted, Attached, Detached, Evicted
from kvreg_service.core.labels import Attach, ReusePath


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, number, length=150, **options):
    """Serve the first turn of a session with a boundary at ``length``."""
    return core.run([*_text(number, length), 7, 8], boundary=length, **options)


def _back(core, number, length=150):
    return core.run([*_text(number, length), 5, 6], boundary=length)


@pytest.mark.parametrize("lanes", [2, 3])
def test_an_empty_lane_is_used_before_a_session_is_displaced(make_core, lanes):
    core = make_core(lanes=lanes, entries=1)
    outcomes = [_keep(core, number) for number in range(lanes)]
    assert {outcome.admission.lane for outcome in outcomes} == set(range(lanes))
    assert not [event for outcome in outcomes for event in outcome.of(Detached)]


def test_a_session_is_resumed_on_its_own_lane(make_core):
    core = make_core(lanes=3, entries=1)
    lanes = [_keep(core, number).admission.lane for number in range(2)]
    outcomes = [_back(core, number) for number in range(2)]
    assert [outcome.admission.lane for outcome in outcomes] == lanes
    assert [outcome.admission.attach for outcome in outcomes] == [Attach.NONE] * 2
    assert not [event for outcome in outcomes for event in outcome.of(Attached)]


def test_the_lane_whose_session_was_answered_first_is_displaced(make_core):
    core = make_core(lanes=3, entries=1)
    lanes = [_keep(core, number).admission.lane for number in range(3)]
    _back(core, 0)
    assert _keep(core, 3).admission.lane == lanes[1]


def test_a_lane_whose_session_is_gone_is_used_like_an_empty_one(make_core):
    core = make_core(lanes=2, entries=1)
    first, second = (_keep(core, number).admission for number in range(2))
    core.scheduler.sessions.drop(second.session_id)
    outcome = _keep(core, 2)
    assert (outcome.admission.lane, outcome.of(Detached)) == (second.lane, [])
    assert core.scheduler.lanes[first.lane].session.session_id == first.session_id


def test_a_busy_lane_is_never_displaced(make_core):
    core = make_core(lanes=2, entries=1)
    _keep(core, 0)
    core.submit([9] * 50, max_tokens=400)
    for _ in range(3):
        core.step()
    core.submit(_text(2, 100))
    _, happened = core.step()
    assert [event.lane for event in happened if isinstance(event, Detached)] == [0]


def test_a_displaced_session_is_reported_with_what_it_still_holds(make_core):
    core = make_core(entries=2)
    session_id = _keep(core, 0).admission.session_id
    (detached,) = _keep(core, 1).of(Detached)
    # Two states of 1,000 bytes, and the three pages that they share with nobody else.
    assert (detached.session_id, detached.lane, detached.num_states) == (session_id, 0, 2)
    assert detached.held_bytes == 2 * 1000 + 3 * 640


def test_a_displaced_session_is_resumed_on_any_lane(make_core):
    core = make_core(lanes=2, entries=1)
    first = _keep(core, 0).admission
    _keep(core, 1, 400)
    _keep(core, 2, 400)
    outcome = _back(core, 0)
    again = outcome.admission
    assert (again.session_id, again.attach) == (first.session_id, Attach.REGISTRY)
    assert again.lane != first.lane
    assert [(event.session_id, event.path) for event in outcome.of(Attached)] == [
        (first.session_id, ReusePath.RESTORE_TURN_CHECKPOINT)
    ]


@pytest.mark.parametrize("keep", [True, False])
def test_two_sessions_take_turns_on_one_lane(make_core, keep):
    core = make_core(entries=1, keep_current=keep)
    _keep(core, 0)
    _keep(core, 1)
    for number in (0, 1, 0, 1):
        outcome = _back(core, number)
        assert outcome.cached == 150
        assert len(outcome.of(Attached)) == len(outcome.of(Detached)) == 1


def test_a_session_that_runs_on_two_lanes_is_the_last_one_of_both(make_core):
    core = make_core(lanes=2, entries=1)
    session_id = _keep(core, 0).admission.session_id
    for tail in (1, 2):
        core.submit([*_text(0, 150), tail, tail], boundary=151, max_tokens=20)
    core.drain()
    assert [lane.session.session_id for lane in core.scheduler.lanes] == [session_id] * 2


def test_dropping_a_session_frees_its_pages_and_reports_its_states(make_core):
    core = make_core(entries=1)
    session_id = _keep(core, 0).admission.session_id
    _keep(core, 1)
    num_free = core.scheduler.store.pages.num_free
    happened = core.scheduler.sessions.drop(session_id)
    assert {type(event) for event in happened} == {Evicted}
    assert [event.tokens for event in happened] == [150, 155]
    assert core.scheduler.store.pages.num_free == num_free + 3
    assert _back(core, 0).cached == 0


def test_dropping_a_session_during_a_step_returns_only_its_own_events(make_core):
    core = make_core(entries=1)
    session_id = _keep(core, 0).admission.session_id
    request_id = core.submit(_text(1, 100))
    plan = core.scheduler.schedule(core.now_s)
    happened = core.scheduler.sessions.drop(session_id)
    assert {type(event) for event in happened} == {Evicted}
    later = core.scheduler.commit(plan, core.runner.execute(plan), core.now_s)
    assert [type(event) for event in later[:2]] == [Detached, Admitted]
    assert core.drain().terminal.request_id == request_id
