"""Forks: a copy is kept where a prompt diverges, and branches never write to shared pages."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Evicted, Forked
from kvreg_service.core.memory.pages import PageState

HISTORY = list(range(100, 300))
TURN = [*HISTORY, 1, 2, 3]
TITLE = [*HISTORY, 4, 5, 6, 7]


def _first_turn(core, **options):
    return core.run(TURN, boundary=200, **options)


def _other(core, number, length=400):
    text = list(range(10_000 * number, 10_000 * number + length))
    return core.run([*text, 7], boundary=length)


def test_a_side_request_on_a_sessions_history_preserves_the_session(make_core):
    core = make_core(entries=1)
    _first_turn(core)
    title = core.run(TITLE, boundary=203)
    assert title.cached == 200
    assert core.run([*HISTORY, 9, 9, 9]).cached == 200


def test_without_an_entry_a_side_request_loses_the_sessions_checkpoint(make_core):
    core = make_core(entries=0)
    _first_turn(core)
    core.run(TITLE, boundary=203)
    assert core.run([*HISTORY, 9, 9, 9]).cached == 0


def test_an_earlier_turn_can_be_edited_after_the_next_turn(make_core):
    core = make_core(entries=1)
    answer = _first_turn(core).answer
    second = TURN + answer + [8] * 20
    core.run([*second, 1], boundary=len(second))
    other = TURN + answer + [6] * 20
    assert core.run([*other, 1], boundary=len(other)).cached >= 200


def test_branches_have_the_output_of_a_cold_run(make_core):
    core = make_core(entries=2)
    _first_turn(core)
    for tail in ([4, 5, 6], [7, 8, 9], [4, 4, 4], [7, 8, 9, 10]):
        prompt = HISTORY + tail
        expected = make_core().run(prompt, max_tokens=30).answer
        assert core.run(prompt, boundary=len(prompt) - 1, max_tokens=30).answer == expected


@pytest.mark.parametrize(
    ("options", "request_options"),
    [
        ({"entries": 1}, {"boundary": None}),
        ({"entries": 1}, {"boundary": 200}),
        ({"entries": 1, "policy": "none"}, {"boundary": 203}),
        ({"entries": 0}, {"boundary": 203}),
    ],
    ids=["no boundary", "boundary is here", "policy none", "no entries"],
)
def test_no_fork_is_made_where_it_would_preserve_nothing(make_core, options, request_options):
    core = make_core(**options)
    _first_turn(core)
    assert not core.run(TITLE, **request_options).of(Forked)


def test_a_fork_uses_an_empty_entry_and_evicts_nothing(make_core):
    core = make_core(entries=2)
    _other(core, 1)
    _first_turn(core)
    outcome = core.run(TITLE, boundary=203)
    assert [event.entry for event in outcome.of(Forked)] == [1]
    assert not outcome.of(Evicted)


def test_a_fork_never_evicts_the_entry_of_an_unrelated_session(make_core):
    core = make_core(entries=1)
    _other(core, 1, length=70)
    _first_turn(core)
    outcome = core.run(TITLE, boundary=203)
    assert not outcome.of(Forked)
    assert not outcome.of(Evicted)


def test_a_fork_replaces_the_superseded_fork_of_the_previous_turn(make_core):
    core = make_core(entries=1)
    prompt, answer = TURN, _first_turn(core).answer
    outcomes = []
    for turn in range(3):
        history = [*prompt, *answer, *[20 + turn] * 10]
        prompt = [*history, 1]
        outcomes.append(core.run(prompt, boundary=len(history)))
        answer = outcomes[-1].answer
    assert [len(outcome.of(Forked)) for outcome in outcomes] == [1, 1, 1]
    assert [len(outcome.of(Evicted)) for outcome in outcomes] == [0, 1, 1]


def test_a_sequence_attached_from_its_entry_leaves_a_fork_in_it(make_core):
    core = make_core(entries=1, exchange=False)
    _first_turn(core)
    core.run([9] * 10, retain=False)
    outcome = core.run(TITLE, boundary=203)
    assert [event.entry for event in outcome.of(Forked)] == [0]
    assert core.run([*HISTORY, 9, 9, 9]).cached == 200


def test_a_fork_shares_the_pages_before_the_branch_point_and_copies_the_others(make_core):
    core = make_core(entries=1)
    _first_turn(core, max_tokens=100)
    core.submit(TITLE, boundary=203, max_tokens=1)
    core.step()
    ((_, fork),) = list(core.scheduler.holdings.registry)
    running = core.scheduler.holdings.lanes[0].sequence
    # Three whole pages lie before position 200, and the frontier was at 302.
    assert fork.pages[:3] == running.pages[:3]
    assert len(fork.pages) == 5
    assert not set(fork.pages[3:]) & set(running.pages)


def test_the_running_sequence_keeps_its_contiguous_pages(make_core):
    core = make_core(entries=1)
    _first_turn(core, max_tokens=100)
    (kept,) = core.kept()
    before = kept.pages[:4]
    core.submit(TITLE, boundary=203)
    core.step()
    assert core.scheduler.holdings.lanes[0].sequence.pages[:4] == before


def test_without_free_pages_for_the_copies_there_is_no_fork_and_no_eviction(make_core):
    core = make_core(entries=1, num_pages=6, max_context_tokens=384)
    _first_turn(core, max_tokens=180)
    assert core.scheduler.holdings.pages.num_free == 0
    outcome = core.run(TITLE, boundary=203, max_tokens=1)
    assert not outcome.of(Forked)
    assert not outcome.of(Evicted)


def test_in_drop_mode_a_fork_keeps_the_checkpoint_only(make_core):
    core = make_core(entries=1, keep_current=False)
    _first_turn(core, max_tokens=100)
    core.run(TITLE, boundary=203)
    ((_, fork),) = list(core.scheduler.holdings.registry)
    assert not fork.has_current
    assert len(fork.pages) == 4


def test_a_superseded_fork_is_evicted_before_a_less_valuable_session(make_core):
    core = make_core(entries=2)
    _other(core, 1, length=70)
    _first_turn(core)
    (forked,) = core.run(TITLE, boundary=203).of(Forked)
    (evicted,) = _other(core, 2).of(Evicted)
    assert evicted.sequence_id == forked.sequence_id


def _branched(make_core, **options):
    """Return a core with two sequences that share the page of the older one's checkpoint."""
    core = make_core(entries=1, **options)
    answer = core.run(TURN, boundary=200, max_tokens=60).answer
    second = TURN + answer + [7] * 120
    core.run([*second, 1], boundary=len(second))
    (fork,) = [s for s in core.kept() if s.superseded_by is not None]
    (trunk,) = [s for s in core.kept() if s.superseded_by is None]
    assert fork.pages[:4] == trunk.pages[:4], "precondition of these tests"
    return core, second


@pytest.mark.parametrize("retain", [True, False])
def test_resuming_a_fork_inside_a_shared_page_does_not_change_the_other_branch(make_core, retain):
    core, second = _branched(make_core)
    core.run([*HISTORY, 4, 5, 6], boundary=200, retain=retain)
    assert core.run([*second, 9], boundary=len(second)).cached == len(second)


def test_a_page_copied_on_write_is_active(make_core):
    core, _ = _branched(make_core)
    core.submit([*HISTORY, 4, 5, 6], boundary=200)
    core.step()
    running = core.scheduler.holdings.lanes[0].sequence
    assert core.scheduler.holdings.pages.state(running.pages[3]) is PageState.ACTIVE


def test_a_shared_page_is_taken_over_when_no_page_is_free_for_a_copy(make_core):
    core, second = _branched(make_core, num_pages=8, max_context_tokens=512)
    assert core.scheduler.holdings.pages.num_free == 0
    tail = [*HISTORY, 4, 5, 6]
    outcome = core.run(tail, boundary=200, max_tokens=30)
    assert outcome.cached == 200
    assert outcome.answer == make_core().run(tail, max_tokens=30).answer
    assert core.run(second, max_tokens=1).answer == make_core().run(second, max_tokens=1).answer


@pytest.mark.parametrize("entries", [1, 2, 4])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_prompt_with_a_changing_end_reuses_its_stable_prefix(make_core, entries, lanes):
    core = make_core(lanes=lanes, entries=entries, num_pages=200)
    first = core.run([*range(300), 1, 2], boundary=298)
    history = [*range(300), 1, 2, *first.answer]
    cached = [
        core.run([*history, *range(700, 740), 60 + n, 7], boundary=len(history) + 41).cached
        for n in range(8)
    ]
    assert min(cached) >= 298


def test_two_branches_of_one_turn_can_both_be_continued(make_core):
    core = make_core(entries=1, num_pages=200)
    first = core.run([*range(300), 1, 2], boundary=298)
    history = [*range(300), 1, 2, *first.answer]
    branches = []
    for begin in (700, 800):
        prompt = [*history, *range(begin, begin + 40), 7]
        branches.append([*prompt, *core.run(prompt, boundary=len(prompt) - 1).answer])
    for branch in branches:
        assert core.run([*branch, 9, 9], boundary=len(branch) + 1).cached >= len(history) + 40


def test_an_edited_message_evicts_an_unrelated_one_shot_before_the_conversation(make_core):
    core = make_core(entries=2, num_pages=200)
    core.run(range(9000, 9020), boundary=19)
    prompt = list(range(300))
    for turn in range(4):
        answer = core.run(prompt, boundary=len(prompt) - 1).answer
        prompt = [*prompt, *answer, *range(1000 * turn + 1000, 1000 * turn + 1170)]
    last = core.scheduler.holdings.lanes[0].sequence
    fork = max(
        (one for _, one in core.scheduler.holdings.registry if one.family == last.family),
        key=lambda one: one.reusable_tokens,
    )
    reworded = [*last.ledger.tokens[: fork.frontier + 30], *[5] * 20]
    core.run(reworded, boundary=len(reworded) - 1)
    assert fork.ledger.tokens in [one.ledger.tokens for one in core.kept()]
    assert last.sequence_id in [one.sequence_id for one in core.kept()]
