"""Anchors (shared prompt prefixes): capture, matching, alignment to pages and replacement."""

from __future__ import annotations

import pytest
from tests.unit.core.shared_heads import (
    HEAD_TOKENS,
    THEIRS,
    WHOLE,
    anchors_of,
    begin,
    chat,
    cold_answer,
    heads_of,
    system,
)

from kvreg_service.core.anchors import aligned
from kvreg_service.core.events import AnchorCaptured, Evicted
from kvreg_service.core.labels import Attach, EvictionReason, ReusePath
from kvreg_service.core.requests.request import Head

# Matching.


def test_the_second_conversation_with_the_same_head_reuses_its_anchor(make_core):
    core = make_core(anchors=1)
    first = begin(core, 1, 1)
    assert [(e.position, e.anchor, e.is_marked) for e in first.of(AnchorCaptured)] == [
        (WHOLE, 0, False)
    ]
    admission = begin(core, 1, 2).admission
    assert (admission.cached_tokens, admission.reuse_path, admission.attach) == (
        WHOLE,
        ReusePath.RESTORE_ANCHOR,
        Attach.ANCHOR,
    )


def test_without_anchor_places_no_anchor_is_captured(make_core):
    core = make_core(anchors=0)
    begin(core, 1, 1)
    assert begin(core, 1, 2).cached == 0


@pytest.mark.parametrize("chunk_tokens", [16, 64, 100, 512])
@pytest.mark.parametrize("keep", [True, False])
def test_ten_conversations_share_a_head_and_get_the_output_of_a_cold_run(
    make_core, keep, chunk_tokens
):
    core = make_core(entries=2, anchors=1, keep_current=keep, chunk_tokens=chunk_tokens)
    for question in range(10):
        outcome = begin(core, 1, question)
        assert outcome.cached == (WHOLE if question else 0)
        assert outcome.answer == cold_answer(make_core, chat(1, question))


def test_the_next_turn_of_an_anchored_conversation_reuses_its_own_sequence(make_core):
    core = make_core(entries=1, anchors=1)
    begin(core, 1, 1)
    second = begin(core, 1, 2)
    prompt = [*chat(1, 2), *second.answer, 5, 5]
    outcome = core.run(prompt, max_tokens=3)
    assert outcome.cached == len(chat(1, 2)) + 2
    assert outcome.admission.sequence_id == second.admission.sequence_id


def test_a_longer_reuse_than_the_anchor_is_preferred(make_core):
    core = make_core(entries=2, anchors=1)
    begin(core, 1, 1)
    assert begin(core, 1, 1).admission.reuse_path is ReusePath.RESTORE_TURN_CHECKPOINT


def test_an_entry_is_preferred_to_an_anchor_with_the_same_cached_tokens(make_core):
    core = make_core(entries=3, anchors=1)
    core.run([*system(1, WHOLE), 9], boundary=WHOLE, max_tokens=1)
    core.run([*system(2), 9], max_tokens=1)
    begin(core, 1, 1, may_reuse=False, retain=True)
    assert heads_of(core) == [1], "precondition of this test"
    admission = core.run(chat(1, 2)).admission
    assert (admission.cached_tokens, admission.attach) == (WHOLE, Attach.REGISTRY)


def test_the_longest_matching_anchor_is_used(make_core):
    core = make_core(anchors=2)
    heads = (Head(70), Head(140))
    core.run(chat(1, 1), heads=heads)
    assert [len(anchor.sequence.ledger) for anchor in anchors_of(core)] == [64, 128]
    assert core.run(chat(1, 2), heads=heads).cached == 128
    assert core.run([*system(1, 100), *[3] * 60], heads=heads[:1]).cached == 64


def test_an_anchor_is_matched_without_heads_in_the_request(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    assert core.run(chat(1, 2)).cached == WHOLE


def test_at_least_one_token_is_computed_after_an_anchor(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    assert core.run(system(1, WHOLE)).cached == 0
    assert core.run(system(1, WHOLE + 1)).cached == WHOLE


def test_a_head_is_captured_once(make_core):
    core = make_core(anchors=2)
    for question in range(4):
        begin(core, 1, question)
        begin(core, 1, question, may_reuse=False)
    assert heads_of(core) == [1]


def test_a_request_that_may_not_reuse_is_a_cold_prefill(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    outcome = begin(core, 1, 2, may_reuse=False)
    assert outcome.cached == 0
    assert outcome.answer == cold_answer(make_core, chat(1, 2))


def test_an_anchor_is_never_reused_by_another_tenant(make_core):
    core = make_core(anchors=2)
    begin(core, 1, 1)
    assert begin(core, 1, 2, identity=THEIRS).cached == 0
    assert begin(core, 1, 3, identity=THEIRS).cached == WHOLE
    assert heads_of(core) == [1, 1]


# Alignment to pages.


@pytest.mark.parametrize(
    ("length", "position"), [(63, None), (64, 64), (127, 64), (128, 128), (129, 128)]
)
def test_a_head_is_truncated_to_whole_pages(make_core, length, position):
    core = make_core(anchors=1)
    captured = begin(core, 1, 1, length=length).of(AnchorCaptured)
    assert [event.position for event in captured] == ([position] if position else [])


def test_aligned_returns_only_heads_after_the_position_and_before_the_end():
    heads = (Head(60), Head(130), Head(200), Head(260))
    assert aligned(heads, after=128, before=256) == (Head(192),)
    assert aligned(heads, after=0, before=257) == (Head(128), Head(192), Head(256))


def test_heads_that_end_in_the_same_page_are_marked_if_any_of_them_is():
    assert aligned((Head(130, True), Head(140)), after=0, before=500) == (Head(128, True),)
    assert aligned((Head(130), Head(140, True)), after=0, before=500) == (Head(128, True),)


# Replacement.


def test_an_empty_anchor_place_is_used_before_an_anchor_is_evicted(make_core):
    core = make_core(anchors=2)
    begin(core, 1, 1)
    assert [event.anchor for event in begin(core, 2, 1).of(AnchorCaptured)] == [1]
    assert heads_of(core) == [1, 2]


def test_heads_seen_once_do_not_replace_a_proven_anchor(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    begin(core, 1, 2)
    for number in range(2, 8):
        begin(core, number, 1, length=900)
    assert heads_of(core) == [1]


def test_a_head_seen_before_replaces_a_less_valuable_proven_anchor(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    begin(core, 1, 2)
    core.now_s += 500.0
    begin(core, 2, 1)
    assert heads_of(core) == [1]
    (evicted,) = [e for e in begin(core, 2, 2).of(Evicted) if e.anchor is not None]
    assert (evicted.anchor, evicted.reason) == (0, EvictionReason.ANCHOR_NEEDED)
    assert heads_of(core) == [2]


def test_a_head_seen_before_does_not_replace_a_more_valuable_anchor(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1, length=1500)
    begin(core, 1, 2, length=1500)
    for question in range(3):
        begin(core, 2, question, length=70)
    assert heads_of(core) == [1]


def test_a_head_seen_once_replaces_a_candidate_and_not_a_proven_anchor(make_core):
    core = make_core(anchors=2)
    begin(core, 1, 1)
    begin(core, 1, 2)
    begin(core, 2, 1)
    core.now_s += 500.0
    begin(core, 3, 1)
    assert heads_of(core) == [1, 3]


def test_a_marked_head_replaces_a_proven_anchor_on_its_first_request(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    begin(core, 1, 2)
    core.now_s += 500.0
    (captured,) = begin(core, 2, 1, marked=True).of(AnchorCaptured)
    assert captured.is_marked
    assert heads_of(core) == [2]


def test_a_marked_head_is_proven_at_capture(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1, marked=True)
    core.now_s += 500.0
    begin(core, 2, 1)
    assert heads_of(core) == [1]


def test_later_turns_of_a_conversation_do_not_count_its_head_again(make_core):
    """The head of a conversation with many turns counts as seen once."""
    core = make_core(anchors=1)
    begin(core, 1, 1)
    begin(core, 1, 2)
    core.now_s += 500.0
    outcome = begin(core, 2, 1)
    prompt = chat(2, 1)
    for _ in range(4):
        prompt = [*prompt, *outcome.answer, 5, 5, 5]
        outcome = core.run(prompt, boundary=len(prompt) - 1, heads=(Head(HEAD_TOKENS),))
        assert outcome.cached
    assert heads_of(core) == [1]


def _two_heads_in_one_step(core, numbers):
    """Admit two requests that reach the end of their heads in one step; return its captures."""
    for number, heads in zip(numbers, [(64, HEAD_TOKENS), (HEAD_TOKENS,)], strict=True):
        prompt = chat(number, len(core.log))
        core.submit(prompt, max_tokens=3, heads=tuple(Head(length) for length in heads))
    core.step()
    plan, happened = core.step()
    assert [work.end for work in plan.work] == [WHOLE, WHOLE], "precondition of these tests"
    return [event for event in happened if isinstance(event, AnchorCaptured)]


def test_two_lanes_that_reach_the_same_head_in_one_step_capture_it_once(make_core):
    core = make_core(lanes=2, anchors=2)
    assert len(_two_heads_in_one_step(core, [1, 1])) == 1
    core.drain()
    assert [len(anchor.sequence.ledger) for anchor in anchors_of(core)] == [64, WHOLE]


def test_two_lanes_that_reach_two_heads_in_one_step_get_a_place_each(make_core):
    core = make_core(lanes=2, anchors=2)
    captured = _two_heads_in_one_step(core, [1, 2])
    assert sorted(event.anchor for event in captured) == [0, 1]
    core.drain()
    for number in (1, 2):
        outcome = begin(core, number, 5)
        assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(number, 5)))


def test_two_lanes_that_reach_two_heads_in_one_step_do_not_share_the_only_place(make_core):
    core = make_core(lanes=2, anchors=1)
    assert len(_two_heads_in_one_step(core, [1, 2])) == 1
    core.drain()
    outcome = begin(core, 1, 5)
    assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(1, 5)))


def test_a_mark_proves_an_anchor_that_is_already_kept(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    (candidate,) = anchors_of(core)
    assert not candidate.is_proven
    begin(core, 1, 2, marked=True, may_reuse=False)
    (anchor,) = anchors_of(core)
    assert (anchor.is_marked, anchor.sequence.num_hits) == (True, 0)
