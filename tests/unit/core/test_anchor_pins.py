"""Pins on anchors count against anchor places; pins on sessions count against entries."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import PinRefused
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.requests.request import Head

THEIRS = Identity(b"epoch", "theirs")
HEAD_TOKENS = 64
ONE_OF_EACH = Quota(entries=1, pages=4, anchors=1)


def _begin(core, number, **options):
    """Begin a conversation whose head becomes an anchor."""
    head = range(10_000 * number, 10_000 * number + HEAD_TOKENS)
    core.run([*head, 1, 2, 3], heads=(Head(HEAD_TOKENS, True),), max_tokens=1, **options)


def _anchors(core, tenant=None):
    return [
        anchor.sequence
        for anchor in core.scheduler.holdings.anchors
        if tenant in (None, anchor.sequence.tenant)
    ]


def _pin(core, sequence):
    core.scheduler.custody.pin(sequence.sequence_id, 1000.0, core.now_s)


def test_a_pin_is_refused_where_quotas_reserve_the_anchor_places(make_core):
    core = make_core(entries=2, anchors=2)
    core.scheduler.custody.set_quotas({THEIRS.tenant: ONE_OF_EACH}, core.now_s)
    _begin(core, 1)
    _begin(core, 2)
    first, second = _anchors(core)
    _pin(core, first)
    with pytest.raises(PinRefused, match="1 anchors"):
        _pin(core, second)


def test_a_pin_does_not_block_an_anchor_within_another_tenants_quota(make_core):
    core = make_core(entries=2, anchors=1)
    _begin(core, 1)
    _pin(core, *_anchors(core))
    core.scheduler.custody.set_quotas({THEIRS.tenant: ONE_OF_EACH}, core.now_s)
    _begin(core, 2, identity=THEIRS)
    assert len(_anchors(core, THEIRS.tenant)) == 1


def test_pinned_anchors_above_a_reduced_quota_are_evicted(make_core):
    core = make_core(entries=2, anchors=1)
    core.scheduler.custody.set_quotas({THEIRS.tenant: ONE_OF_EACH}, core.now_s)
    _begin(core, 1, identity=THEIRS)
    _pin(core, *_anchors(core))
    core.scheduler.custody.set_quotas({THEIRS.tenant: Quota(entries=1, pages=4)}, core.now_s)
    assert _anchors(core, THEIRS.tenant) == []


def test_pinned_anchors_do_not_count_against_entries(make_core):
    core = make_core(entries=1, anchors=1)
    _begin(core, 1, boundary=66)
    _pin(core, *_anchors(core))
    (session,) = (one for one in core.kept() if one not in _anchors(core))
    _pin(core, session)
    assert session.is_pinned(core.now_s)
