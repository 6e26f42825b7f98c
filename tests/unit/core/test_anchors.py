"""Heads that many conversations begin with: found, shared, never changed, and rarely given up."""

from __future__ import annotations

import pytest

from kvreg_service.core.anchors import aligned
from kvreg_service.core.events import (
    Admitted,
    AnchorCaptured,
    Attach,
    Cancelled,
    Evicted,
    EvictionReason,
    Failed,
    Finished,
    ReuseFailed,
    ReusePath,
)
from kvreg_service.core.identity import Identity
from kvreg_service.core.request import Head

THEIRS = Identity(b"epoch", "theirs")
HEAD_TOKENS = 200
WHOLE = 192
"""What of a head of 200 tokens fills whole pages."""


def _system(number: int, length: int = HEAD_TOKENS) -> list[int]:
    return list(range(10_000 * number, 10_000 * number + length))


def _chat(number: int, question: int, length: int = HEAD_TOKENS) -> list[int]:
    return [*_system(number, length), *range(500 + 50 * question, 540 + 50 * question), 7]


def _begin(core, number, question, *, marked=False, length=HEAD_TOKENS, run=True, **options):
    """Begin a conversation with a shared head; its checkpoint lies before the last token."""
    prompt = _chat(number, question, length)
    options = {"boundary": len(prompt) - 1, "max_tokens": 3, **options}
    do = core.run if run else core.submit
    return do(prompt, heads=(Head(length, marked),), **options)


def _heads(core) -> list[int]:
    """The first tokens of the kept heads, which tell them apart."""
    return [
        anchor.sequence.ledger.tokens[0] // 10_000 for anchor in core.scheduler.holdings.anchors
    ]


def _anchors(core):
    return list(core.scheduler.holdings.anchors)


def _cold(make_core, prompt, max_tokens=3):
    return make_core().run(prompt, max_tokens=max_tokens).answer


# Found.


def test_the_second_conversation_with_the_same_head_begins_at_it(make_core):
    core = make_core(anchors=1)
    first = _begin(core, 1, 1)
    assert [(e.position, e.anchor, e.is_marked) for e in first.of(AnchorCaptured)] == [
        (WHOLE, 0, False)
    ]
    admitted = _begin(core, 1, 2).admitted
    assert (admitted.cached_tokens, admitted.reuse_path, admitted.attach) == (
        WHOLE,
        ReusePath.RESTORE_ANCHOR,
        Attach.ANCHOR,
    )


def test_without_places_for_anchors_there_are_none(make_core):
    core = make_core(anchors=0)
    _begin(core, 1, 1)
    assert _begin(core, 1, 2).cached == 0


@pytest.mark.parametrize("chunk_tokens", [16, 64, 100, 512])
@pytest.mark.parametrize("keep", [True, False])
def test_ten_conversations_share_a_head_and_are_answered_as_if_alone(make_core, keep, chunk_tokens):
    core = make_core(entries=2, anchors=1, keep_current=keep, chunk_tokens=chunk_tokens)
    for question in range(10):
        outcome = _begin(core, 1, question)
        assert outcome.cached == (WHOLE if question else 0)
        assert outcome.answer == _cold(make_core, _chat(1, question))


def test_a_conversation_that_began_at_an_anchor_goes_on_by_itself(make_core):
    core = make_core(entries=1, anchors=1)
    _begin(core, 1, 1)
    second = _begin(core, 1, 2)
    prompt = [*_chat(1, 2), *second.answer, 5, 5]
    outcome = core.run(prompt, max_tokens=3)
    assert outcome.cached == len(_chat(1, 2)) + 2
    assert outcome.admitted.sequence_id == second.admitted.sequence_id


def test_a_longer_reuse_than_the_anchor_is_preferred(make_core):
    core = make_core(entries=2, anchors=1)
    _begin(core, 1, 1)
    assert _begin(core, 1, 1).admitted.reuse_path is ReusePath.RESTORE_TURN_CHECKPOINT


def test_of_equal_reuse_an_entry_is_preferred_to_an_anchor(make_core):
    core = make_core(entries=3, anchors=1)
    core.run([*_system(1, WHOLE), 9], boundary=WHOLE, max_tokens=1)
    core.run([*_system(2), 9], max_tokens=1)
    _begin(core, 1, 1, may_reuse=False, retain=True)
    assert _heads(core) == [1], "the precondition of this test"
    admitted = core.run(_chat(1, 2)).admitted
    assert (admitted.cached_tokens, admitted.attach) == (WHOLE, Attach.REGISTRY)


def test_of_several_heads_the_longest_that_fits_is_used(make_core):
    core = make_core(anchors=2)
    heads = (Head(70), Head(140))
    core.run(_chat(1, 1), heads=heads)
    assert [len(anchor.sequence.ledger) for anchor in _anchors(core)] == [64, 128]
    assert core.run(_chat(1, 2), heads=heads).cached == 128
    assert core.run([*_system(1, 100), *[3] * 60], heads=heads[:1]).cached == 64


def test_an_anchor_is_used_without_being_named(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    assert core.run(_chat(1, 2)).cached == WHOLE


def test_one_token_is_left_to_compute_behind_an_anchor(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    assert core.run(_system(1, WHOLE)).cached == 0
    assert core.run(_system(1, WHOLE + 1)).cached == WHOLE


def test_a_head_is_kept_once(make_core):
    core = make_core(anchors=2)
    for question in range(4):
        _begin(core, 1, question)
        _begin(core, 1, question, may_reuse=False)
    assert _heads(core) == [1]


def test_a_request_that_may_not_reuse_begins_from_nothing(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    outcome = _begin(core, 1, 2, may_reuse=False)
    assert outcome.cached == 0
    assert outcome.answer == _cold(make_core, _chat(1, 2))


def test_another_tenant_never_begins_at_it(make_core):
    core = make_core(anchors=2)
    _begin(core, 1, 1)
    assert _begin(core, 1, 2, identity=THEIRS).cached == 0
    assert _begin(core, 1, 3, identity=THEIRS).cached == WHOLE
    assert _heads(core) == [1, 1]


# Cut to whole pages.


@pytest.mark.parametrize(
    ("length", "position"), [(63, None), (64, 64), (127, 64), (128, 128), (129, 128)]
)
def test_a_head_is_cut_to_whole_pages(make_core, length, position):
    core = make_core(anchors=1)
    captured = _begin(core, 1, 1, length=length).of(AnchorCaptured)
    assert [event.position for event in captured] == ([position] if position else [])


def test_heads_behind_the_position_and_ahead_of_the_end_count():
    heads = (Head(60), Head(130), Head(200), Head(260))
    assert aligned(heads, after=128, before=256) == (Head(192),)
    assert aligned(heads, after=0, before=257) == (Head(128), Head(192), Head(256))


def test_a_mark_counts_for_all_that_end_in_the_same_page():
    assert aligned((Head(130, True), Head(140)), after=0, before=500) == (Head(128, True),)
    assert aligned((Head(130), Head(140, True)), after=0, before=500) == (Head(128, True),)


# Who gets a place.


def test_a_place_that_is_empty_is_taken_before_anybody_is_given_up(make_core):
    core = make_core(anchors=2)
    _begin(core, 1, 1)
    assert [event.anchor for event in _begin(core, 2, 1).of(AnchorCaptured)] == [1]
    assert _heads(core) == [1, 2]


def test_one_off_heads_do_not_push_out_a_proven_one(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    _begin(core, 1, 2)
    for number in range(2, 8):
        _begin(core, number, 1, length=900)
    assert _heads(core) == [1]


def test_a_head_that_was_seen_before_replaces_a_less_valuable_proven_one(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    _begin(core, 1, 2)
    core.now_s += 500.0
    _begin(core, 2, 1)
    assert _heads(core) == [1]
    (evicted,) = [e for e in _begin(core, 2, 2).of(Evicted) if e.anchor is not None]
    assert (evicted.anchor, evicted.reason) == (0, EvictionReason.ANCHOR_NEEDED)
    assert _heads(core) == [2]


def test_a_head_that_was_seen_before_does_not_replace_a_more_valuable_one(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1, length=1500)
    _begin(core, 1, 2, length=1500)
    for question in range(3):
        _begin(core, 2, question, length=70)
    assert _heads(core) == [1]


def test_candidates_compete_among_themselves(make_core):
    core = make_core(anchors=2)
    _begin(core, 1, 1)
    _begin(core, 1, 2)
    _begin(core, 2, 1)
    core.now_s += 500.0
    _begin(core, 3, 1)
    assert _heads(core) == [1, 3]


def test_a_marked_head_replaces_a_proven_one_at_first_sight(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    _begin(core, 1, 2)
    core.now_s += 500.0
    (captured,) = _begin(core, 2, 1, marked=True).of(AnchorCaptured)
    assert captured.is_marked
    assert _heads(core) == [2]


def test_a_marked_head_is_proven_from_the_beginning(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1, marked=True)
    core.now_s += 500.0
    _begin(core, 2, 1)
    assert _heads(core) == [1]


def test_what_is_computed_behind_an_anchor_does_not_count_its_head_again(make_core):
    """A conversation with many turns has shown its head once."""
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    _begin(core, 1, 2)
    core.now_s += 500.0
    outcome = _begin(core, 2, 1)
    prompt = _chat(2, 1)
    for _ in range(4):
        prompt = [*prompt, *outcome.answer, 5, 5, 5]
        outcome = core.run(prompt, boundary=len(prompt) - 1, heads=(Head(HEAD_TOKENS),))
        assert outcome.cached
    assert _heads(core) == [1]


def _two_heads_in_one_step(core, numbers):
    """Admit two requests, the first of which stops once more on its way; return that step."""
    for number, heads in zip(numbers, [(64, HEAD_TOKENS), (HEAD_TOKENS,)], strict=True):
        prompt = _chat(number, len(core.log))
        core.submit(prompt, max_tokens=3, heads=tuple(Head(length) for length in heads))
    core.step()
    plan, happened = core.step()
    assert [work.end for work in plan.work] == [WHOLE, WHOLE], "the precondition of these tests"
    return [event for event in happened if isinstance(event, AnchorCaptured)]


def test_two_lanes_that_end_the_same_head_in_one_step_keep_it_once(make_core):
    core = make_core(lanes=2, anchors=2)
    assert len(_two_heads_in_one_step(core, [1, 1])) == 1
    core.drain()
    assert [len(anchor.sequence.ledger) for anchor in _anchors(core)] == [64, WHOLE]


def test_two_lanes_that_end_two_heads_in_one_step_get_a_place_each(make_core):
    core = make_core(lanes=2, anchors=2)
    captured = _two_heads_in_one_step(core, [1, 2])
    assert sorted(event.anchor for event in captured) == [0, 1]
    core.drain()
    for number in (1, 2):
        outcome = _begin(core, number, 5)
        assert (outcome.cached, outcome.answer) == (WHOLE, _cold(make_core, _chat(number, 5)))


def test_two_lanes_that_end_two_heads_in_one_step_do_not_share_the_only_place(make_core):
    core = make_core(lanes=2, anchors=1)
    assert len(_two_heads_in_one_step(core, [1, 2])) == 1
    core.drain()
    outcome = _begin(core, 1, 5)
    assert (outcome.cached, outcome.answer) == (WHOLE, _cold(make_core, _chat(1, 5)))


# Never changed.


def test_a_head_is_not_changed_by_the_conversation_that_left_it(make_core):
    core = make_core(entries=1, anchors=1)
    first = _begin(core, 1, 1, max_tokens=100)
    prompt = [*_chat(1, 1), *first.answer, *range(300)]
    core.run(prompt, boundary=len(prompt) - 1, max_tokens=50)
    outcome = _begin(core, 1, 2)
    assert (outcome.cached, outcome.answer) == (WHOLE, _cold(make_core, _chat(1, 2)))


def test_a_head_is_not_changed_by_who_goes_back_to_a_point_before_it(make_core):
    core = make_core(entries=0, anchors=1)
    prompt = _chat(1, 1)
    core.run(prompt[:151], boundary=150)
    core.run(prompt, heads=(Head(HEAD_TOKENS),), max_tokens=3)
    other = [*prompt[:150], *[9] * 100]
    outcome = core.run(other, max_tokens=3)
    assert (outcome.cached, outcome.answer) == (150, _cold(make_core, other))
    again = _begin(core, 1, 2)
    assert (again.cached, again.answer) == (WHOLE, _cold(make_core, _chat(1, 2)))


def test_a_head_stays_when_the_conversation_that_left_it_is_given_up(make_core):
    core = make_core(entries=0, anchors=1)
    first = _begin(core, 1, 1).admitted.sequence_id
    core.scheduler.drop_sequence(first)
    outcome = _begin(core, 1, 2)
    assert (outcome.cached, outcome.answer) == (WHOLE, _cold(make_core, _chat(1, 2)))


def test_conversations_that_began_there_outlive_the_anchor(make_core):
    core = make_core(entries=1, anchors=1)
    _begin(core, 1, 1)
    second = _begin(core, 1, 2)
    core.scheduler.drop_sequence(_anchors(core)[0].sequence.sequence_id)
    prompt = [*_chat(1, 2), *second.answer, 5]
    outcome = core.run(prompt, max_tokens=3)
    assert outcome.cached > WHOLE
    assert outcome.answer == _cold(make_core, prompt)


def test_an_anchor_may_go_while_a_request_that_began_there_runs(make_core):
    core = make_core(anchors=1, chunk_tokens=16)
    _begin(core, 1, 1)
    _begin(core, 1, 2, run=False)
    core.step()
    core.scheduler.drop_sequence(_anchors(core)[0].sequence.sequence_id)
    outcome = core.drain()
    assert outcome.answer == _cold(make_core, _chat(1, 2))


def test_its_pages_are_held_once(make_core):
    core = make_core(entries=2, anchors=1)
    for question in range(3):
        _begin(core, 1, question)
    pages = core.scheduler.holdings.pages
    # Three pages of the head, and one for what follows of each of the three conversations.
    assert core.num_pages - pages.num_free == 3 + 3


# Requests that leave nothing.


def test_a_request_that_is_not_retained_uses_an_anchor(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    core.scheduler.drop_sequence(1)
    outcome = _begin(core, 1, 2, retain=False)
    assert (outcome.cached, outcome.answer) == (WHOLE, _cold(make_core, _chat(1, 2)))
    assert [len(one.ledger) for one in core.kept()] == [WHOLE]


def test_a_request_that_is_not_retained_leaves_no_anchor_and_no_trace_of_its_head(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    _begin(core, 1, 2)
    core.now_s += 500.0
    for _ in range(3):
        assert not _begin(core, 2, 1, retain=False).of(AnchorCaptured)
    assert not _begin(core, 2, 1).of(AnchorCaptured), "it counts as seen for the first time"


def test_a_step_that_fails_while_it_captures_an_anchor_keeps_none(make_core):
    core = make_core(anchors=1)
    core.runner.fails_moves = False
    request_id = _begin(core, 1, 1, run=False)
    _, happened = core.step(fail=[request_id])
    assert [type(event) for event in happened] == [Admitted, Failed]
    assert _anchors(core) == []
    assert core.scheduler.holdings.pages.num_free == core.num_pages
    assert _begin(core, 1, 2).cached == 0


def test_a_step_that_fails_while_it_captures_an_anchor_leaves_the_checkpoint(make_core):
    core = make_core(anchors=1)
    core.run([*_system(1, 100), 7], boundary=100)
    request_id = core.submit(_chat(1, 1), heads=(Head(HEAD_TOKENS),))
    core.runner.fails_moves = False
    core.step(fail=[request_id])
    assert core.run([*_system(1, 100), 5, 5]).cached == 100


def test_a_place_whose_capture_failed_is_given_to_the_next(make_core):
    core = make_core(anchors=1)
    core.runner.fails_moves = False
    request_id = _begin(core, 1, 1, run=False)
    core.step(fail=[request_id])
    _begin(core, 2, 1)
    assert _heads(core) == [2]


def test_cancelling_before_the_head_ends_leaves_no_anchor(make_core):
    core = make_core(anchors=1, chunk_tokens=100)
    request_id = _begin(core, 1, 1, run=False)
    core.step()
    assert core.scheduler.cancel(request_id, core.now_s) == [Cancelled(request_id, 0)]
    assert _anchors(core) == []


def test_cancelling_behind_the_head_leaves_the_anchor(make_core):
    core = make_core(anchors=1, chunk_tokens=WHOLE)
    request_id = _begin(core, 1, 1, run=False)
    core.step()
    core.scheduler.cancel(request_id, core.now_s)
    assert _begin(core, 1, 2).cached == WHOLE


def test_a_failed_beginning_at_an_anchor_is_computed_from_nothing_and_leaves_it(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    request_id = _begin(core, 1, 2, run=False)
    _, happened = core.step(fail=[request_id])
    assert any(isinstance(event, ReuseFailed) for event in happened)
    outcome = core.drain()
    assert outcome.answer == _cold(make_core, _chat(1, 2))
    assert _begin(core, 1, 3).cached == WHOLE


def test_an_anchor_that_a_failed_admission_cost_is_told_all_the_same(make_core, monkeypatch):
    core = make_core(anchors=1, num_pages=8, max_context_tokens=512)
    _begin(core, 1, 1)
    core.scheduler.drop_sequence(1)
    holdings = core.scheduler.holdings

    def take_and_fail(*_arguments):
        assert holdings.evict_for_pages("tenant", core.now_s)
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler._shares, "settle", take_and_fail)
        core.submit([8] * 300)
        _, happened = core.step()
    evicted = [(e.anchor, e.reason) for e in happened if isinstance(e, Evicted)]
    assert evicted == [(0, EvictionReason.FAILED)]


# Under pressure, by hand, pinned.


def test_an_anchor_is_given_up_for_pages_like_anything_kept(make_core):
    core = make_core(anchors=1, num_pages=8, max_context_tokens=512)
    _begin(core, 1, 1)
    outcome = core.run([8] * 500, max_tokens=12)
    assert isinstance(outcome.terminal, Finished)
    reasons = {event.reason for event in outcome.of(Evicted) if event.anchor is not None}
    assert reasons == {EvictionReason.PAGES_NEEDED}
    assert _begin(core, 1, 2).cached == 0


def test_an_anchor_whose_pages_a_running_request_shares_stays_while_others_have_some(make_core):
    core = make_core(lanes=2, anchors=1, num_pages=12, max_context_tokens=512)
    _begin(core, 1, 1)
    core.run([*_system(3, 250), 7], boundary=250, max_tokens=1)
    _begin(core, 1, 2, run=False, max_tokens=300)
    outcome = core.drain()
    assert [event.anchor for event in outcome.of(Evicted)] == [None]
    assert _heads(core) == [1]


def test_an_anchor_is_dropped_by_its_id(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    (anchor,) = _anchors(core)
    (event,) = core.scheduler.drop_sequence(anchor.sequence.sequence_id)
    assert (event.anchor, event.reason, event.tokens) == (0, EvictionReason.REQUESTED, WHOLE)
    assert _begin(core, 1, 1, may_reuse=False).of(AnchorCaptured)


def test_a_pinned_anchor_yields_to_no_head(make_core):
    core = make_core(anchors=1)
    _begin(core, 1, 1)
    (anchor,) = _anchors(core)
    core.scheduler.pin(anchor.sequence.sequence_id, 5000.0, core.now_s)
    core.now_s += 500.0
    for question in range(3):
        _begin(core, 2, question, marked=True)
    assert _heads(core) == [1]


def test_a_pinned_anchor_is_not_taken_for_pages(make_core):
    core = make_core(anchors=1, num_pages=12, max_context_tokens=512)
    _begin(core, 1, 1)
    (anchor,) = _anchors(core)
    core.scheduler.pin(anchor.sequence.sequence_id, 5000.0, core.now_s)
    assert isinstance(core.run([8] * 500, max_tokens=12).terminal, Finished)
    assert _heads(core) == [1]


def test_pinned_anchors_need_no_entries(make_core):
    core = make_core(entries=0, anchors=1)
    _begin(core, 1, 1)
    (anchor,) = _anchors(core)
    core.scheduler.pin(anchor.sequence.sequence_id, 5000.0, core.now_s)
    assert anchor.sequence.is_pinned(core.now_s)
