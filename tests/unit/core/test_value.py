"""What a kept sequence is worth by cost."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.identity import Identity
from kvreg_service.core.ids import SequenceId, pages_for
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.policies import POLICY_NAMES, build_policy
from kvreg_service.core.sequence import Checkpoint, Sequence
from kvreg_service.core.value import CostModel

COST = CostModel(slot_bytes=1000, page_bytes=100)


def _kept(number=1, tokens=1000, last_used_s=0.0, checkpoint=None, **options):
    return Sequence(
        sequence_id=SequenceId(number),
        ledger=TokenLedger(Identity(b"epoch", "tenant")),
        created_s=0.0,
        last_used_s=last_used_s,
        frontier=tokens,
        checkpoint=None if checkpoint is None else Checkpoint(checkpoint, CheckpointKind.TURN),
        pages=list(range(pages_for(tokens))),
        **options,
    )


def _value(sequence, now_s=0.0, name="cost"):
    return build_policy(name, COST).value(sequence, now_s)


@pytest.mark.parametrize(("num_tokens", "tokens_per_s"), [(4096, 1121.1), (32768, 1029.2)])
def test_the_default_rates_give_the_measured_prefill_rates(num_tokens, tokens_per_s):
    assert num_tokens / CostModel().prefill_seconds(num_tokens) == pytest.approx(
        tokens_per_s, rel=1e-3
    )


def test_prefill_grows_faster_than_linearly():
    model = CostModel()
    assert model.prefill_seconds(200_000) > 10 * model.prefill_seconds(20_000)


def test_nothing_computed_costs_nothing():
    assert CostModel().prefill_seconds(0) == 0.0


@pytest.mark.parametrize(
    ("options", "held_bytes"),
    [
        ({}, 1000 + 1600),
        ({"checkpoint": 900}, 2000 + 1600),
        ({"checkpoint": 900, "has_current": False}, 1000 + 1600),
    ],
)
def test_states_and_pages_are_counted(options, held_bytes):
    assert COST.held_bytes(_kept(**options)) == held_bytes


def test_a_longer_prefix_is_worth_more():
    assert _value(_kept(tokens=2000)) > _value(_kept(tokens=1000))


def test_a_prefix_that_can_be_resumed_only_early_is_worth_less():
    whole, early = _kept(), _kept(has_current=False, checkpoint=100)
    assert _value(early) < _value(whole)


def test_a_rest_of_one_scale_leaves_half_of_the_value():
    sequence = _kept()
    assert _value(sequence, 20.0) == pytest.approx(_value(sequence) / 2)


def test_after_long_rests_only_their_ratio_counts():
    sequence = _kept()
    hours, days = (_value(sequence, t) / _value(sequence, 2 * t) for t in (3600.0, 86400.0))
    assert hours == pytest.approx(days, rel=0.02)


def test_returning_often_raises_the_value():
    assert _value(_kept(num_hits=3)) > _value(_kept(num_hits=1)) > _value(_kept())


def test_no_number_of_returns_outweighs_a_recent_rest_for_long():
    often, once = _kept(num_hits=1000, last_used_s=0.0), _kept(last_used_s=12.0)
    assert _value(often, 12.0) < _value(once, 12.0)


def test_more_bytes_for_the_same_prefix_are_worth_less():
    assert _value(_kept(checkpoint=900)) < _value(_kept())


def test_what_an_anchor_keeps_as_well_counts_for_neither_seconds_nor_bytes():
    plain = _kept(tokens=1000)
    anchored = _kept(tokens=1000, anchored_by=SequenceId(9), anchored_tokens=640)
    assert COST.own_bytes(plain) == COST.held_bytes(plain) == COST.held_bytes(anchored)
    assert COST.own_bytes(anchored) == COST.held_bytes(anchored) - 10 * 100
    assert COST.own_seconds(anchored) == pytest.approx(
        COST.prefill_seconds(1000) - COST.prefill_seconds(640)
    )


def test_a_short_conversation_behind_a_long_anchor_is_worth_less_than_one_of_its_own_length():
    behind = _kept(tokens=6020, anchored_by=SequenceId(9), anchored_tokens=5952)
    assert _value(behind) < _value(_kept(tokens=600))


def test_a_clock_that_steps_back_does_not_raise_the_value():
    assert _value(_kept(last_used_s=50.0), 10.0) == _value(_kept(last_used_s=10.0), 10.0)


def test_a_week_of_rest_leaves_a_comparable_value():
    week_s = 7 * 24 * 3600.0
    assert 0.0 <= _value(_kept(), week_s) < _value(_kept(), week_s / 2)


def test_policy_none_ranks_the_longest_unused_first_whatever_it_saves():
    long_unused = _kept(tokens=30_000, num_hits=9, last_used_s=1.0)
    just_used = _kept(tokens=10, last_used_s=2.0)
    assert _value(long_unused, 3.0, "none") < _value(just_used, 3.0, "none")


@pytest.mark.parametrize(("name", "evicts"), [("cost", True), ("none", False)])
def test_only_policy_none_leaves_entries_alone(name, evicts):
    policy = build_policy(name, COST)
    assert (policy.name, policy.evicts_for_detach) == (name, evicts)


def test_an_unknown_policy_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigurationError) as caught:
        build_policy("lru2", COST)
    assert all(name in caught.value.message for name in POLICY_NAMES)
