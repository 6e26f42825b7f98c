"""Sequence ids shown to a tenant reveal nothing about the sequences of other tenants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_bench import token_prompt

from kvreg_service.core.errors import PinRefused, SessionNotFound
from kvreg_service.core.ids import SequenceId
from kvreg_service.engine.views.tenant_ids import TenantIds


def _seen(bench, tenant):
    snapshot = bench.engine.snapshot(tenant)
    places = (*snapshot.lanes, *snapshot.entries, *snapshot.anchors)
    return [place.sequence_id for place in places if place.sequence_id is not None]


@pytest.fixture
def bench(make_bench, ids):
    bench = make_bench(lanes=1, entries=3)
    for number, tenant in enumerate(("alpha", "beta", "alpha")):
        request = replace(bench.request(token_prompt(ids(number, 40), 30)), tenant=tenant)
        bench.run(request)
    return bench


def test_ids_shown_to_a_tenant_differ_from_internal_ids(bench):
    assert len(_seen(bench, "alpha")) == 2
    assert len(_seen(bench, "beta")) == 1
    assert not set(_seen(bench, None)) & {*_seen(bench, "alpha"), *_seen(bench, "beta")}


def test_ids_shown_to_a_tenant_are_stable(bench):
    assert _seen(bench, "alpha") == _seen(bench, "alpha")


def test_tenant_drops_and_pins_by_the_ids_shown_to_it(bench):
    first, second = _seen(bench, "alpha")
    bench.engine.pin(first, 60.0, "alpha")
    bench.engine.unpin(first, "alpha")
    bench.engine.drop_sequence(second, "alpha")
    assert _seen(bench, "alpha") == [first]


@pytest.mark.parametrize("viewer", ["beta", None])
def test_id_shown_to_a_tenant_is_not_found_for_others(bench, viewer):
    with pytest.raises(SessionNotFound):
        bench.engine.drop_sequence(_seen(bench, "alpha")[0], viewer)


def test_internal_id_is_not_found_for_a_tenant(bench):
    with pytest.raises(SessionNotFound):
        bench.engine.drop_sequence(_seen(bench, None)[0], "alpha")


def test_refused_pin_reveals_no_sequence_id(make_bench, ids):
    bench = make_bench(lanes=1, entries=0)
    bench.run(replace(bench.request(token_prompt(ids(1, 40), 30)), tenant="alpha"))
    (shown,) = _seen(bench, "alpha")
    with pytest.raises(PinRefused) as caught:
        bench.engine.pin(shown, 60.0, "alpha")
    assert "sequence_id" not in caught.value.fields


def test_ids_of_two_engines_differ():
    first, second = TenantIds(), TenantIds()
    assert first.shown(SequenceId(1), "alpha") != second.shown(SequenceId(1), "alpha")
