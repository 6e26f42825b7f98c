"""An anchor is never changed, leaves nothing half-way, and goes only when it must."""

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
from kvreg_service.core.request import Head

# Never changed.


def test_a_head_is_not_changed_by_the_conversation_that_left_it(make_core):
    core = make_core(entries=1, anchors=1)
    first = begin(core, 1, 1, max_tokens=100)
    prompt = [*chat(1, 1), *first.answer, *range(300)]
    core.run(prompt, boundary=len(prompt) - 1, max_tokens=50)
    outcome = begin(core, 1, 2)
    assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))


def test_a_head_is_not_changed_by_who_goes_back_to_a_point_before_it(make_core):
    core = make_core(entries=0, anchors=1)
    prompt = chat(1, 1)
    core.run(prompt[:151], boundary=150)
    core.run(prompt, heads=(Head(HEAD_TOKENS),), max_tokens=3)
    other = [*prompt[:150], *[9] * 100]
    outcome = core.run(other, max_tokens=3)
    assert (outcome.cached, outcome.answer) == (150, cold_answer(make_core, other))
    again = begin(core, 1, 2)
    assert (again.cached, again.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))


def test_a_head_stays_when_the_conversation_that_left_it_is_given_up(make_core):
    core = make_core(entries=0, anchors=1)
    first = begin(core, 1, 1).admission.sequence_id
    core.scheduler.custody.drop(first)
    outcome = begin(core, 1, 2)
    assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))


def test_conversations_that_began_there_outlive_the_anchor(make_core):
    core = make_core(entries=1, anchors=1)
    begin(core, 1, 1)
    second = begin(core, 1, 2)
    core.scheduler.custody.drop(anchors_of(core)[0].sequence.sequence_id)
    prompt = [*chat(1, 2), *second.answer, 5]
    outcome = core.run(prompt, max_tokens=3)
    assert outcome.cached > WHOLE
    assert outcome.answer == cold_answer(make_core, prompt)


def test_an_anchor_may_go_while_a_request_that_began_there_runs(make_core):
    core = make_core(anchors=1, chunk_tokens=16)
    begin(core, 1, 1)
    begin(core, 1, 2, run=False)
    core.step()
    core.scheduler.custody.drop(anchors_of(core)[0].sequence.sequence_id)
    outcome = core.drain()
    assert outcome.answer == cold_answer(make_core, chat(1, 2))


def test_its_pages_are_held_once(make_core):
    core = make_core(entries=2, anchors=1)
    for question in range(3):
        begin(core, 1, question)
    pages = core.scheduler.holdings.pages
    # Three pages of the head, and one for what follows of each of the three conversations.
    assert core.num_pages - pages.num_free == 3 + 3


# Requests that leave nothing.


def test_a_request_that_is_not_retained_uses_an_anchor(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    core.scheduler.custody.drop(1)
    outcome = begin(core, 1, 2, retain=False)
    assert (outcome.cached, outcome.answer) == (WHOLE, cold_answer(make_core, chat(1, 2)))
    assert [len(one.ledger) for one in core.kept()] == [WHOLE]


def test_a_request_that_is_not_retained_leaves_no_anchor_and_no_trace_of_its_head(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    begin(core, 1, 2)
    core.now_s += 500.0
    for _ in range(3):
        assert not begin(core, 2, 1, retain=False).of(AnchorCaptured)
    assert not begin(core, 2, 1).of(AnchorCaptured), "it counts as seen for the first time"


def test_a_step_that_fails_while_it_captures_an_anchor_keeps_none(make_core):
    core = make_core(anchors=1)
    core.runner.fails_moves = False
    request_id = begin(core, 1, 1, run=False)
    _, happened = core.step(fail=[request_id])
    assert [type(event) for event in happened] == [Admitted, Failed]
    assert anchors_of(core) == []
    assert core.scheduler.holdings.pages.num_free == core.num_pages
    assert begin(core, 1, 2).cached == 0


def test_a_step_that_fails_while_it_captures_an_anchor_leaves_the_checkpoint(make_core):
    core = make_core(anchors=1)
    core.run([*system(1, 100), 7], boundary=100)
    request_id = core.submit(chat(1, 1), heads=(Head(HEAD_TOKENS),))
    core.runner.fails_moves = False
    core.step(fail=[request_id])
    assert core.run([*system(1, 100), 5, 5]).cached == 100


def test_a_place_whose_capture_failed_is_given_to_the_next(make_core):
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


def test_cancelling_behind_the_head_leaves_the_anchor(make_core):
    core = make_core(anchors=1, chunk_tokens=WHOLE)
    request_id = begin(core, 1, 1, run=False)
    core.step()
    core.scheduler.cancel(request_id, core.now_s)
    assert begin(core, 1, 2).cached == WHOLE


def test_a_failed_beginning_at_an_anchor_is_computed_from_nothing_and_leaves_it(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    request_id = begin(core, 1, 2, run=False)
    _, happened = core.step(fail=[request_id])
    assert any(isinstance(event, ReuseFailed) for event in happened)
    outcome = core.drain()
    assert outcome.answer == cold_answer(make_core, chat(1, 2))
    assert begin(core, 1, 3).cached == WHOLE


def test_an_anchor_that_a_failed_admission_cost_is_told_all_the_same(make_core, monkeypatch):
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


# Under pressure, by hand, pinned.


def test_an_anchor_is_given_up_for_pages_like_anything_kept(make_core):
    core = make_core(anchors=1, num_pages=8, max_context_tokens=512)
    begin(core, 1, 1)
    outcome = core.run([8] * 500, max_tokens=12)
    assert isinstance(outcome.terminal, Finished)
    reasons = {event.reason for event in outcome.of(Evicted) if event.anchor is not None}
    assert reasons == {EvictionReason.PAGES_NEEDED}
    assert begin(core, 1, 2).cached == 0


def test_an_anchor_whose_pages_a_running_request_shares_stays_while_others_have_some(make_core):
    core = make_core(lanes=2, anchors=1, num_pages=12, max_context_tokens=512)
    begin(core, 1, 1)
    core.run([*system(3, 250), 7], boundary=250, max_tokens=1)
    begin(core, 1, 2, run=False, max_tokens=300)
    outcome = core.drain()
    assert [event.anchor for event in outcome.of(Evicted)] == [None]
    assert heads_of(core) == [1]


def test_an_anchor_is_dropped_by_its_id(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    (anchor,) = anchors_of(core)
    (event,) = core.scheduler.custody.drop(anchor.sequence.sequence_id)
    assert (event.anchor, event.reason, event.tokens) == (0, EvictionReason.REQUESTED, WHOLE)
    assert begin(core, 1, 1, may_reuse=False).of(AnchorCaptured)


def test_a_pinned_anchor_yields_to_no_head(make_core):
    core = make_core(anchors=1)
    begin(core, 1, 1)
    (anchor,) = anchors_of(core)
    core.scheduler.custody.pin(anchor.sequence.sequence_id, 5000.0, core.now_s)
    core.now_s += 500.0
    for question in range(3):
        begin(core, 2, question, marked=True)
    assert heads_of(core) == [1]


def test_a_pinned_anchor_is_not_taken_for_pages(make_core):
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
