"""A conversation counts an anchor as keeping its beginning only while it begins like the anchor."""

from __future__ import annotations

from kvreg_service.core.request import Head

HEAD_TOKENS = 192
BOUNDARY = 100
"""Ahead of the head's end, as in a tool loop whose later results are marked."""


def _begin(core):
    core.run(range(1000, 1300), heads=(Head(HEAD_TOKENS, True),), boundary=BOUNDARY, max_tokens=2)
    (sequence,) = (one for one in core.kept() if one.has_current)
    return sequence


def test_conversation_that_goes_on_from_before_its_anchors_end_is_worth_what_it_holds(make_core):
    core = make_core(anchors=1)
    sequence = _begin(core)
    assert sequence.anchored_tokens == HEAD_TOKENS
    outcome = core.run([*range(1000, 1000 + BOUNDARY), *range(5000, 5400)], max_tokens=2)
    assert (outcome.cached, outcome.admission.sequence_id) == (BOUNDARY, sequence.sequence_id)
    cost = core.scheduler.holdings.cost
    assert cost.own_bytes(sequence) == cost.held_bytes(sequence)


def test_conversation_that_goes_on_behind_its_anchors_end_still_counts_it(make_core):
    core = make_core(anchors=1)
    sequence = _begin(core)
    core.run([*sequence.ledger.tokens, 7, 8], max_tokens=2)
    assert sequence.anchored_tokens == HEAD_TOKENS
