"""The policy ``none``: a displaced session is kept only where there is room; nothing is freed.

This is the rule of the system that kvreg follows. Its measured capacities are reproduced here: a
session and a side request, by the number of entries.
"""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Evicted
from kvreg_service.core.labels import Attach, EvictionReason, ReusePath
from kvreg_service.core.scheduling.step import SlotCopy

STABLE = 961
HISTORY = list(range(10_000, 10_000 + STABLE))
TITLE = list(range(20_000, 20_038))
SIDE = list(range(30_000, 30_311))
THINK = [3, 3, 3, 3]


def _core(make_core, **options):
    return make_core(num_pages=128, max_context_tokens=4096, policy="none", **options)


def _chat(core, stable, **options):
    return core.run(stable + THINK, boundary=len(stable), **options)


def _second_turn(core, first):
    return _chat(core, [*HISTORY, *first.answer, *[5] * 20])


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("entries", "session", "side"),
    [(0, 0, 0), (1, STABLE, 0), (2, STABLE, 0), (3, STABLE, 311), (4, STABLE, 311)],
)
def test_a_side_request_is_reused_from_three_entries_on(make_core, keep, entries, session, side):
    """The hops: turn 1, a title, a side request, turn 2, and the side request again."""
    core = _core(make_core, entries=entries, keep_current=keep or entries == 0)
    first = _chat(core, HISTORY, max_tokens=52)
    _chat(core, TITLE)
    _chat(core, SIDE)
    assert _second_turn(core, first).cached == session
    assert _chat(core, SIDE).cached == side


@pytest.mark.parametrize("keep", [True, False])
def test_with_one_entry_the_session_returns_and_the_side_request_does_not(make_core, keep):
    core = _core(make_core, entries=1, keep_current=keep)
    first = _chat(core, HISTORY, max_tokens=52)
    _chat(core, SIDE)
    second = _second_turn(core, first)
    assert second.cached == STABLE
    assert second.admission.reuse_path is ReusePath.RESTORE_TURN_CHECKPOINT
    assert second.admission.attach is Attach.REGISTRY
    assert _chat(core, SIDE).cached == 0


def test_with_every_place_taken_the_displaced_session_is_given_up(make_core):
    core = _core(make_core, entries=1)
    _chat(core, HISTORY, max_tokens=52)
    _chat(core, TITLE)
    outcome = _chat(core, SIDE)
    assert {(event.tokens, event.reason) for event in outcome.of(Evicted)} == {
        (len(TITLE), EvictionReason.DISPLACED),
        (len(TITLE) + len(THINK) + 3, EvictionReason.DISPLACED),
    }


def test_a_session_keeps_its_last_boundary_and_frontier_only(make_core):
    core = _core(make_core, entries=3)
    first = _chat(core, HISTORY, max_tokens=52)
    second = _second_turn(core, first)
    prompt = STABLE + 52 + 20
    assert core.kept() == [("turn", prompt), ("frontier", prompt + len(THINK) + 3)]
    gone = [(event.tokens, event.reason) for event in second.of(Evicted)]
    assert gone == [
        (STABLE + len(THINK) + 51, EvictionReason.SUPERSEDED),
        (STABLE, EvictionReason.SUPERSEDED),
    ]


def test_a_frontier_that_is_appended_to_is_taken_over(make_core):
    core = _core(make_core, entries=1)
    first = _chat(core, HISTORY, max_tokens=52)
    outcome = core.run([*HISTORY, *THINK, *first.answer, 5, 6])
    assert outcome.cached == STABLE + len(THINK) + 51
    moves = outcome.steps[0].preparation.moves
    assert not [move for move in moves if isinstance(move, SlotCopy)]
    assert [event.reason for event in outcome.of(Evicted)] == [EvictionReason.SLOT_NEEDED]


@pytest.mark.parametrize("anchors", [1, 2])
def test_a_head_is_kept_while_fewer_than_the_anchors_are(make_core, anchors):
    core = _core(make_core, entries=2, anchors=anchors)
    for number in range(4):
        core.run([*range(5000 * number, 5000 * number + 200), 7], heads=(128,))
    heads = [position for kind, position in core.kept() if kind == "head"]
    assert heads == [128] * anchors


def test_a_branch_point_is_not_kept(make_core):
    core = _core(make_core, entries=2, anchors=2)
    core.run(HISTORY[:400], boundary=390)
    core.run([*HISTORY[:200], *[9] * 100], boundary=290)
    assert "branch_point" not in [kind for kind, _ in core.kept()]


def test_page_pressure_frees_the_least_recently_used(make_core):
    core = make_core(entries=3, num_pages=8, max_context_tokens=512, policy="none")
    for number, length in enumerate((120, 60, 60)):
        core.run(range(1000 * number, 1000 * number + length), max_tokens=1)
    outcome = core.run(range(9000, 9000 + 64 * 6), max_tokens=1)
    assert next(event.tokens for event in outcome.of(Evicted)) == 120
