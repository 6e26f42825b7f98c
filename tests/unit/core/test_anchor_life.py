"""Lifetime of anchors: immutable once captured, captured completely or not at all, eviction."""

from __future__ import annotations

from tests.unit.core.shared_heads import (
    HEAD_TOKENS,
    WHOLE,
    anchors_of,
    begin,
    chat,
    cold_answer,
    heads_of,
    system,
)

from kvreg_service.core.events import (
    Admitted,
    AnchorCaptured,
    Cancelled,
    Evicted,
    Failed,
    Finished,
    ReuseFailed,
)
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.request import Head

# Immutability.


def test_an_anchor_is_not_changed_by_the_conversation_that_created_it(make_core):
    core = make_core(entries=1, anchors=1)
    first = begin(core, 1, 1, max_tokens=100)
    prompt = [*chat(1, 1), *first.answer, *range(300)]
    core.run(prompt, boundary=len(prompt) - 1, max_tokens=50)
    outcome = begin(core, 1, 2)
    assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))


def test_an_anchor_is_not_changed_by_a_request_that_diverges_before_its_end(make_core):
    core = make_core(entries=0, anchors=1)
    prompt = chat(1, 1)
    core.run(prompt[:151], boundary=150)
    core.run(prompt, heads=(Head(HEAD_TOKENS),), max_tokens=3)
    other = [*prompt[:150], *[9] * 100]
    outcome = core.run(other, max_tokens=3)
    assert (outcome.cached, outcome.answer) == (150, cold_answer(make_core, other))
    again = begin(core, 1, 2)
    assert (again.cached, again.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))


def test_an_anchor_stays_when_the_conversation_that_created_it_is_dropped(make_core):
    core = make_core(entries=0, anchors=1)
    first = begin(core, 1, 1).admission.sequence_id
    core.scheduler.custody.drop(first)
    outcome = begin(core, 1, 2)
    assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))


def test_conversations_that_attached_to_an_anchor_outlive_it(make_core):
    core = make_core(entries=1, anchors=1)
    begin(core, 1, 1)
    second = begin(core, 1, 2)
    core.scheduler.custody.drop(anchors_of(core)[0].sequence.sequence_id)
    prompt = [*chat(1, 2), *second.answer, 5]
    outcome = core.run(prompt, max_tokens=3)
    assert outcome.cached > WHOLE
    assert outcome.answer == cold_answer(make_core, prompt)


def test_an_anchor_can_be_dropped_while_a_request_attached_to_it_runs(make_core):
    core = make_core(anchors=1, chunk_tokens=16)
    begin(core, 1, 1)
    begin(core, 1, 2, run=False)
    core.step()
    core.scheduler.custody.drop(anchors_of(core)[0].sequence.sequence_id)
    outcome = core.drain()
    assert outcome.answer == cold_answer(make_core, chat(1, 2))


def test_the_pages_of_an_anchor_are_shared_with_its_conversations(make_core):
    core = make_core(entries=2, anchors=1)
    for question in range(3):
        begin(core, 1, question)
    pages = core.scheduler.holdings.pages
    # Three shared pages of the head, and one page for the rest of each of the three conversations.
    assert core.num_pages - pages.num_free == 3 + 3


# Requests that are not retained, fail or are cancelled.


def test_a_request_that_is_not_retained_uses_an_anchor(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    core.scheduler.custody.drop(1)
    outcome = begin(core, 1, 2, retain=False)
    assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))
    assert [len(one.ledger) for one in core.kept()] == [WHOLE]


def test_a_request_that_is_not_retained_captures_no_anchor_and_does_not_count_its_head(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    begin(core, 1, 2)
    core.now_s += 500.0
    for _ in range(3):
        assert not begin(core, 2, 1, retain=False).of(AnchorCaptured)
    assert not begin(core, 2, 1).of(AnchorCaptured), "the head counts as new"


def test_a_step_that_fails_while_it_captures_an_anchor_keeps_none(make_core):
    core = make_core(anchors=1)
    core.runner.fails_moves = False
    request_id = begin(core, 1, 1, run=False)
    _, happened = core.step(fail=[request_id])
    assert [type(event) for event in happened] == [Admitted, Failed]
    assert anchors_of(core) == []
    assert core.scheduler.holdings.pages.num_free == core.num_pages
    assert begin(core, 1, 2).cached == 0


def test_a_step_that_fails_while_it_captures_an_anchor_preserves_the_checkpoint(make_core):
    core = make_core(anchors=1)
    core.run([*system(1, 100), 7], boundary=100)
    request_id = core.submit(chat(1, 1), heads=(Head(HEAD_TOKENS),))
    core.runner.fails_moves = False
    core.step(fail=[request_id])
    assert core.run([*system(1, 100), 5, 5]).cached == 100


def test_an_anchor_place_is_reused_after_a_failed_capture(make_core):
    core = make_core(anchors=1)
    core.runner.fails_moves = False
    request_id = begin(core, 1, 1, run=False)
    core.step(fail=[request_id])
    begin(core, 2, 1)
    assert heads_of(core) == [2]


def test_cancelling_before_the_head_ends_leaves_no_anchor(make_core):
    core = make_core(anchors=1, chunk_tokens=100)
    request_id = begin(core, 1, 1, run=False)
    core.step()
    assert core.scheduler.cancel(request_id, core.now_s) == [Cancelled(request_id, 0)]
    assert anchors_of(core) == []


def test_cancelling_after_the_head_keeps_the_anchor(make_core):
    core = make_core(anchors=1, chunk_tokens=WHOLE)
    request_id = begin(core, 1, 1, run=False)
    core.step()
    core.scheduler.cancel(request_id, core.now_s)
    assert begin(core, 1, 2).cached == WHOLE


def test_a_failed_attach_to_an_anchor_is_a_cold_prefill_and_keeps_the_anchor(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    request_id = begin(core, 1, 2, run=False)
    _, happened = core.step(fail=[request_id])
    assert any(isinstance(event, ReuseFailed) for event in happened)
    outcome = core.drain()
    assert outcome.answer == cold_answer(make_core, chat(1, 2))
    assert begin(core, 1, 3).cached == WHOLE


def test_an_anchor_evicted_by_a_failed_admission_is_reported(make_core, monkeypatch):
    core = make_core(anchors=1, num_pages=8, max_context_tokens=512)
    begin(core, 1, 1)
    core.scheduler.custody.drop(1)
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


# Page pressure, explicit drops and pins.


def test_an_anchor_is_evicted_under_page_pressure_like_any_kept_sequence(make_core):
    core = make_core(anchors=1, num_pages=8, max_context_tokens=512)
    begin(core, 1, 1)
    outcome = core.run([8] * 500, max_tokens=12)
    assert isinstance(outcome.terminal, Finished)
    reasons = {event.reason for event in outcome.of(Evicted) if event.anchor is not None}
    assert reasons == {EvictionReason.PAGES_NEEDED}
    assert begin(core, 1, 2).cached == 0


def test_an_anchor_that_shares_pages_with_a_running_request_is_evicted_after_other_sequences(
    make_core,
):
    core = make_core(lanes=2, anchors=1, num_pages=12, max_context_tokens=512)
    begin(core, 1, 1)
    core.run([*system(3, 250), 7], boundary=250, max_tokens=1)
    begin(core, 1, 2, run=False, max_tokens=300)
    outcome = core.drain()
    assert [event.anchor for event in outcome.of(Evicted)] == [None]
    assert heads_of(core) == [1]


def test_an_anchor_is_dropped_by_its_sequence_id(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    (anchor,) = anchors_of(core)
    (event,) = core.scheduler.custody.drop(anchor.sequence.sequence_id)
    assert (event.anchor, event.reason, event.tokens) == (0, EvictionReason.REQUESTED, WHOLE)
    assert begin(core, 1, 1, may_reuse=False).of(AnchorCaptured)


def test_a_pinned_anchor_is_not_replaced_by_another_head(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    (anchor,) = anchors_of(core)
    core.scheduler.custody.pin(anchor.sequence.sequence_id, 5000.0, core.now_s)
    core.now_s += 500.0
    for question in range(3):
        begin(core, 2, question, marked=True)
    assert heads_of(core) == [1]


def test_a_pinned_anchor_is_not_evicted_for_pages(make_core):
    core = make_core(anchors=1, num_pages=12, max_context_tokens=512)
    begin(core, 1, 1)
    (anchor,) = anchors_of(core)
    core.scheduler.custody.pin(anchor.sequence.sequence_id, 5000.0, core.now_s)
    assert isinstance(core.run([8] * 500, max_tokens=12).terminal, Finished)
    assert heads_of(core) == [1]


def test_pinned_anchors_need_no_entries(make_core):
    core = make_core(entries=0, anchors=1)
    begin(core, 1, 1)
    (anchor,) = anchors_of(core)
    core.scheduler.custody.pin(anchor.sequence.sequence_id, 5000.0, core.now_s)
    assert anchor.sequence.is_pinned(core.now_s)
