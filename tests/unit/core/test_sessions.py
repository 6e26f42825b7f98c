"""Which session a request continues, and which states belong to it."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import SessionBusy, SessionNotFound
from kvreg_service.core.labels import StateKind

TEXT = list(range(100, 900))


def _turn(core, prompt, **options):
    return core.run(prompt, boundary=len(prompt) - 1, **options)


def _of(core, session_id) -> list[tuple[str, int]]:
    session = core.scheduler.store.find_session(session_id)
    return [(one.kind.value, one.position) for one in session.states]


def test_a_request_without_reuse_begins_a_session(make_core):
    core = make_core(entries=2)
    first, second = (_turn(core, [number] * 100).admission for number in (1, 2))
    assert first.session_id != second.session_id
    assert [one.session_id for one in core.sessions()] == [first.session_id, second.session_id]


@pytest.mark.parametrize("has_answer", [True, False], ids=["frontier", "boundary"])
def test_a_request_continues_the_session_of_the_state_that_it_resumes(make_core, has_answer):
    core = make_core(entries=2)
    first = _turn(core, TEXT[:200])
    answer = first.answer if has_answer else []
    second = _turn(core, [*TEXT[:199], *([TEXT[199], *answer] if has_answer else []), 7, 7, 7])
    assert second.cached >= 199
    assert second.admission.session_id == first.admission.session_id
    (session,) = core.sessions()
    assert session.num_resumes == 1


def test_a_request_that_resumes_a_head_begins_a_session(make_core):
    core = make_core(entries=2, anchors=1)
    first = _turn(core, [*TEXT[:200], 1, 1], heads=(200,))
    second = _turn(core, [*TEXT[:200], 2, 2])
    assert second.cached == 200
    assert second.admission.session_id != first.admission.session_id


def test_a_head_is_a_shared_session_of_one_state(make_core):
    core = make_core(entries=2, anchors=2)
    outcome = _turn(core, [*TEXT[:200], 1, 1], heads=(100, 150))
    own = outcome.admission.session_id
    shared = [one for one in core.sessions() if one.is_shared]
    assert [[state.position for state in one.states] for one in shared] == [[100], [150]]
    assert _of(core, own) == [("turn", 201), ("frontier", 205)]
    assert own not in [one.session_id for one in shared]


def test_a_branch_point_of_a_new_session_is_shared(make_core):
    core = make_core(entries=3, anchors=2)
    _turn(core, TEXT[:300])
    outcome = _turn(core, [*TEXT[:150], *[9] * 100])
    (shared,) = (one for one in core.sessions() if one.is_shared)
    assert [(one.kind, one.position) for one in shared.states] == [(StateKind.BRANCH_POINT, 150)]
    assert outcome.cached == 0


def test_a_branch_point_of_a_known_session_is_its_own(make_core):
    core = make_core(entries=3)
    outcome = _turn(core, TEXT[:100])
    answer = _turn(core, TEXT[:300], max_tokens=1).answer
    assert answer
    again = _turn(core, [*TEXT[:200], *[9] * 100])
    assert again.admission.session_id == outcome.admission.session_id
    assert ("branch_point", 200) in _of(core, outcome.admission.session_id)
    assert not [one for one in core.sessions() if one.is_shared]


def test_a_session_keeps_the_states_of_all_its_turns_while_there_is_room(make_core):
    core = make_core(entries=4)
    prompt = TEXT[:100]
    for turn in range(3):
        outcome = _turn(core, prompt)
        prompt = [*prompt, *outcome.answer, *[turn] * 50]
    (session,) = core.sessions()
    assert _of(core, session.session_id) == [
        ("turn", 99),
        ("frontier", 103),
        ("turn", 153),
        ("frontier", 157),
        ("turn", 207),
        ("frontier", 211),
    ]


def test_an_earlier_turn_can_be_edited(make_core):
    core = make_core(entries=4)
    answer = _turn(core, TEXT[:200]).answer
    for tail in (8, 6, 5):
        prompt = [*TEXT[:200], *answer, *[tail] * 40]
        outcome = _turn(core, prompt)
        assert outcome.cached >= 199
        assert outcome.answer == make_core().run(prompt).answer


def test_two_branches_of_one_turn_can_both_be_continued(make_core):
    core = make_core(entries=3, num_pages=200)
    first = _turn(core, TEXT[:300])
    history = [*TEXT[:300], *first.answer]
    branches = []
    for begin in (2000, 3000):
        prompt = [*history, *range(begin, begin + 40), 7]
        branches.append([*prompt, *_turn(core, prompt).answer])
    for branch in branches:
        assert _turn(core, [*branch, 9, 9]).cached >= len(history) + 40


def test_a_side_request_on_the_history_of_a_session_preserves_it(make_core):
    core = make_core(entries=1)
    _turn(core, [*TEXT[:200], 7])
    title = _turn(core, [*TEXT[:200], 4, 5, 6, 7])
    assert title.cached == 200
    assert core.run([*TEXT[:200], 9, 9, 9]).cached == 200


@pytest.mark.parametrize("entries", [1, 2, 4])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_prompt_with_a_changing_end_reuses_its_stable_prefix(make_core, entries, lanes):
    core = make_core(lanes=lanes, entries=entries, num_pages=200)
    first = _turn(core, TEXT[:300])
    history = [*TEXT[:300], *first.answer]
    cached = [
        _turn(core, [*history, *range(2000, 2040), 60 + number, 7]).cached for number in range(8)
    ]
    assert min(cached) >= 299


# Changes by session id.


def _change(core, session_id, **options):
    """Return the three changes of a session by its id."""
    sessions = core.scheduler.sessions
    return (
        lambda: sessions.pin(session_id, 1000.0, core.now_s, **options),
        lambda: sessions.unpin(session_id, **options),
        lambda: sessions.drop(session_id, **options),
    )


def test_a_session_on_which_a_request_runs_cannot_be_changed(make_core):
    core = make_core(entries=1)
    running = core.submit(TEXT[:70], max_tokens=50)
    core.step()
    session_id = core.log[0].admission.session_id
    for change in _change(core, session_id):
        with pytest.raises(SessionBusy):
            change()
    core.scheduler.cancel(running, core.now_s)
    core.scheduler.sessions.drop(session_id)
    for change in _change(core, session_id):
        with pytest.raises(SessionNotFound):
            change()


def test_another_tenant_finds_neither_kept_nor_running_sessions(make_core):
    core = make_core(entries=1)
    session_id = _turn(core, TEXT[:70]).admission.session_id
    for change in _change(core, session_id, tenant="theirs"):
        with pytest.raises(SessionNotFound):
            change()
    core.submit([*TEXT[:69], 5, 6], max_tokens=50)
    core.step()
    for change in _change(core, session_id, tenant="theirs"):
        with pytest.raises(SessionNotFound):
            change()
