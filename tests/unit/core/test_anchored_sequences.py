"""A sequence is credited with an anchor only while it starts with the tokens of the anchor."""

from __future__ import annotations

from kvreg_service.core.requests.request import Head

HEAD_TOKENS = 192
BOUNDARY = 100
"""Before the end of the head, as in a tool loop that marks later tool results."""


def _begin(core):
    core.run(range(1000, 1300), heads=(Head(HEAD_TOKENS, True),), boundary=BOUNDARY, max_tokens=2)
    (sequence,) = (one for one in core.kept() if one.has_current)
    return sequence


def test_a_conversation_resumed_before_its_anchors_end_owns_all_its_bytes(make_core):
    core = make_core(anchors=1)
    sequence = _begin(core)
    assert sequence.anchored_tokens == HEAD_TOKENS
    outcome = core.run([*range(1000, 1000 + BOUNDARY), *range(5000, 5400)], max_tokens=2)
    assert (outcome.cached, outcome.admission.sequence_id) == (BOUNDARY, sequence.sequence_id)
    cost = core.scheduler.holdings.cost
    assert cost.own_bytes(sequence) == cost.held_bytes(sequence)


def test_a_conversation_resumed_after_its_anchors_end_keeps_its_anchored_tokens(make_core):
    core = make_core(anchors=1)
    sequence = _begin(core)
    core.run([*sequence.ledger.tokens, 7, 8], max_tokens=2)
    assert sequence.anchored_tokens == HEAD_TOKENS
