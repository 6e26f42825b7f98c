"""Where states are captured on the way of a prompt, and which of them are worth a slot."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Evicted, StateKept
from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.request import ResumePoint

TEXT = list(range(100, 1000))
FRONTIER = StateKind.FRONTIER


def _captured(outcome) -> list[tuple[str, int]]:
    """Return the kind and position of each captured state; ends of answers are not captured."""
    return [
        (event.kind.value, event.position)
        for event in outcome.of(StateKept)
        if event.kind is not FRONTIER
    ]


def _planned(core, prompt, **options) -> list[tuple[str, int]]:
    plan = core.plan(core.request(prompt, **options))
    return [(point.kind.value, point.position) for point in plan.points]


# The points of a prompt.


@pytest.mark.parametrize("kind", [StateKind.TURN, StateKind.ROUND, StateKind.RESPONSE])
def test_the_boundary_is_captured_with_its_kind(make_core, kind):
    outcome = make_core(chunk_tokens=64).run(TEXT[:250], boundary=130, kind=kind)
    assert _captured(outcome) == [(kind.value, 130)]


def test_the_end_of_the_answer_is_kept_in_the_slot_of_the_lane(make_core):
    core = make_core()
    outcome = core.run(TEXT[:250], boundary=130, max_tokens=4)
    kept = outcome.of(StateKept)[-1]
    assert (kept.kind, kept.position) == (FRONTIER, 253)
    assert core.at(253).slot == outcome.steps[-1].work[0].slot


@pytest.mark.parametrize("boundary", [0, 250, 251, 9999])
def test_a_point_outside_of_the_computed_part_is_not_captured(make_core, boundary):
    assert _captured(make_core().run(TEXT[:250], boundary=boundary)) == []


def test_a_point_at_the_resumed_position_is_not_captured_again(make_core):
    core = make_core()
    core.run(TEXT[:250], boundary=200)
    outcome = core.run([*TEXT[:200], 7, 7], boundary=200)
    assert outcome.cached == 200
    assert _captured(outcome) == []


def test_points_may_be_in_any_order(make_core):
    core = make_core(entries=2, anchors=2)
    outcome = core.run(TEXT[:400], boundary=300, heads=(200, 100))
    assert _captured(outcome) == [("head", 100), ("head", 200), ("turn", 300)]


@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_boundary_and_a_head_at_one_position_the_boundary_counts_with_either_mark(
    make_core, is_first
):
    core = make_core(anchors=1)
    points = [ResumePoint(100, StateKind.TURN), ResumePoint(100, StateKind.HEAD, is_marked=True)]
    core.submit(TEXT[:200], points=points if is_first else points[::-1])
    (kept,) = [event for event in core.drain().of(StateKept) if event.kind is not FRONTIER]
    assert (kept.kind, kept.position, kept.is_marked) == (StateKind.TURN, 100, True)


def test_a_mark_is_noted_on_a_state_that_is_kept_already(make_core):
    core = make_core(anchors=1)
    core.run(TEXT[:200], heads=(100,))
    assert not core.at(100).is_marked
    core.run([*TEXT[:100], 7, 8], heads=(100,), marks_heads=True)
    assert core.at(100).is_marked


def test_a_captured_state_is_not_changed_by_what_is_computed_after_it(make_core):
    core = make_core(entries=2)
    first = core.run(TEXT[:300], boundary=100, max_tokens=100)
    core.run([*TEXT[:300], *first.answer, *range(300)], max_tokens=50)
    prompt = [*TEXT[:100], *[9] * 80]
    outcome = core.run(prompt)
    assert (outcome.cached, outcome.answer) == (100, make_core().run(prompt).answer)


@pytest.mark.parametrize("chunk_tokens", [7, 64, 100, 512])
def test_captures_change_no_answer(make_core, chunk_tokens):
    core = make_core(entries=4, anchors=4, chunk_tokens=chunk_tokens)
    outcome = core.run(TEXT[:400], boundary=333, heads=(64, 130), branch_points=(200,))
    assert outcome.answer == make_core().run(TEXT[:400]).answer


def test_two_requests_that_reach_one_point_in_one_step_keep_one_state(make_core):
    core = make_core(lanes=2, entries=2, anchors=1)
    core.submit([*TEXT[:100], 7], heads=(50, 100))
    core.submit([*TEXT[:100], 8], heads=(100,))
    core.step()
    plan, happened = core.step()
    assert [work.capture_to is not None for work in plan.work] == [True, True]
    assert [event.position for event in happened if isinstance(event, StateKept)] == [100]
    core.drain()
    assert core.run([*TEXT[:100], 9]).cached == 100


def test_the_boundary_of_the_turn_is_followed_by_the_next_turn_and_by_no_round_of_it(make_core):
    core = make_core(entries=4)
    for rounds in (100, 200, 300):
        points = [ResumePoint(50, StateKind.TURN), ResumePoint(rounds, StateKind.ROUND)]
        core.submit(TEXT[: rounds + 5], points=points, max_tokens=1)
        core.drain()
    followed = [one.position for one in core.states() if one.visits.is_followed]
    assert 50 not in followed
    assert {100, 200} <= set(followed)
    core.run(TEXT[:400], boundary=390)
    assert core.at(50).visits.is_followed
    assert core.at(300).visits.is_followed


# Branch points.


def test_a_prompt_that_leaves_a_known_path_far_from_a_state_captures_where_it_leaves(make_core):
    core = make_core(entries=2, anchors=1)
    core.run(TEXT[:400], boundary=390)
    outcome = core.run([*TEXT[:200], *[9] * 100], boundary=290)
    assert _captured(outcome) == [("branch_point", 200), ("turn", 290)]
    assert core.run([*TEXT[:200], *[8] * 100]).cached == 200


def test_a_branch_point_behind_a_resumed_state_belongs_to_its_session(make_core):
    core = make_core(entries=3)
    first = core.run([*TEXT[:100], 7], boundary=100)
    answer = core.run([*TEXT[:300], 7], boundary=300, max_tokens=40).answer
    core.run([*TEXT[:300], 7, *answer[:39], *[9] * 50], boundary=385)
    assert core.at(300).session is core.at(100).session is core.sessions()[0]
    assert core.at(100).session.session_id == first.admission.session_id


@pytest.mark.parametrize(("distance", "is_captured"), [(31, False), (32, True)])
def test_a_branch_point_lies_32_tokens_behind_the_nearest_state_or_point(
    make_core, distance, is_captured
):
    core = make_core(entries=3, anchors=1)
    core.run(TEXT[:400], boundary=200)
    prompt = [*TEXT[: 200 + distance], *[9] * 100]
    assert (("branch_point", 200 + distance) in _planned(core, prompt)) is is_captured


def test_a_branch_point_behind_another_planned_point_is_not_captured(make_core):
    core = make_core(entries=3, anchors=1)
    prompt = TEXT[:400]
    assert _planned(core, prompt, boundary=300, branch_points=(320,)) == [("turn", 300)]
    assert _planned(core, prompt, boundary=300, branch_points=(340,)) == [
        ("turn", 300),
        ("branch_point", 340),
    ]


def test_a_prompt_that_leaves_the_path_of_a_running_request_captures_where_it_leaves(make_core):
    core = make_core(lanes=2, entries=2, anchors=1)
    core.submit(TEXT[:300], max_tokens=50)
    core.step()
    assert _planned(core, [*TEXT[:200], *[9] * 50]) == [("branch_point", 200)]


# Without anchors nothing is captured that only other conversations would resume.


@pytest.mark.parametrize(("anchors", "points"), [(0, []), (1, [("head", 100), ("head", 200)])])
def test_heads_are_captured_only_with_anchors(make_core, anchors, points):
    core = make_core(entries=4, anchors=anchors)
    assert _planned(core, TEXT[:300], heads=(100, 200)) == points


@pytest.mark.parametrize(("anchors", "points"), [(0, []), (1, [("branch_point", 200)])])
def test_a_new_conversation_captures_branch_points_only_with_anchors(make_core, anchors, points):
    core = make_core(entries=4, anchors=anchors)
    core.run(TEXT[:400], boundary=390)
    assert _planned(core, [*TEXT[:200], *[9] * 100]) == points


def test_a_known_conversation_captures_branch_points_without_anchors(make_core):
    core = make_core(entries=4)
    core.run([*TEXT[:300], 7], boundary=100)
    assert _planned(core, [*TEXT[:200], *[9] * 100]) == [("branch_point", 200)]


# Which points are worth a slot.


def _full_of_long_states(make_core, **options):
    """Return a core all of whose slots have long states."""
    core = make_core(**options)
    for number in range(core.layout.num_slots):
        core.run(range(1000 * number, 1000 * number + 400), max_tokens=1)
    assert core.kept() == [("frontier", 400)] * core.layout.num_slots, "precondition"
    return core


def test_the_boundary_of_a_new_session_is_captured_whatever_it_is_worth(make_core):
    core = _full_of_long_states(make_core, entries=2)
    for number in range(20, 25):
        outcome = core.run([number] * 20, boundary=15)
        assert _captured(outcome) == [("turn", 15)]


def test_only_the_last_boundary_of_a_new_session_is_captured_whatever_it_is_worth(make_core):
    core = _full_of_long_states(make_core, entries=2)
    points = [ResumePoint(10, StateKind.ROUND), ResumePoint(15, StateKind.TURN)]
    core.submit([20] * 20, points=points)
    assert _captured(core.drain()) == [("turn", 15)]


def test_a_head_takes_no_slot_from_a_state_of_more_value(make_core):
    core = _full_of_long_states(make_core, entries=1, anchors=2)
    outcome = core.run([20] * 40, heads=(20,))
    assert _captured(outcome) == []
    assert len(outcome.of(Evicted)) == 1, "for the state that the request computes"


def test_a_marked_head_is_captured_whatever_it_is_worth(make_core):
    core = _full_of_long_states(make_core, entries=1, anchors=2)
    outcome = core.run([20] * 40, heads=(20,), marks_heads=True)
    assert _captured(outcome) == [("head", 20)]


def test_a_long_head_takes_a_slot_from_a_state_of_less_value(make_core):
    core = make_core(anchors=1, lanes=1, entries=1)
    for number in (2000, 2001, 2002):
        core.run([number] * 20, boundary=15)
    assert core.scheduler.store.slots.num_free == 0, "precondition of this test"
    outcome = core.run(TEXT[:800], heads=(700,))
    assert _captured(outcome) == [("head", 700)]
    assert outcome.of(Evicted)


def test_without_reuse_nothing_is_captured(make_core):
    core = make_core(entries=2, anchors=2, prefix_reuse=False)
    assert _planned(core, TEXT[:300], boundary=250, heads=(100,)) == []


def test_a_request_that_may_not_reuse_still_captures(make_core):
    core = make_core(anchors=1)
    assert _captured(core.run(TEXT[:300], boundary=250, may_reuse=False)) == [("turn", 250)]
