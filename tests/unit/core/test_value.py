"""The cost model, and the value of a kept sequence under the cost policy."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import SequenceId, pages_for
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.requests.ledger import TokenLedger
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


def test_prefilling_no_tokens_takes_no_time():
    assert CostModel().prefill_seconds(0) == 0.0


@pytest.mark.parametrize(
    ("options", "held_bytes"),
    [
        ({}, 1000 + 1600),
        ({"checkpoint": 900}, 2000 + 1600),
        ({"checkpoint": 900, "has_current": False}, 1000 + 1600),
    ],
)
def test_held_bytes_counts_states_and_pages(options, held_bytes):
    assert COST.held_bytes(_kept(**options)) == held_bytes


def test_a_longer_prefix_has_a_higher_value():
    assert _value(_kept(tokens=2000)) > _value(_kept(tokens=1000))


def test_a_prefix_resumable_only_at_an_early_checkpoint_has_a_lower_value():
    whole, early = _kept(), _kept(has_current=False, checkpoint=100)
    assert _value(early) < _value(whole)


def test_the_value_halves_after_one_time_scale_of_idle_time():
    sequence = _kept()
    assert _value(sequence, 20.0) == pytest.approx(_value(sequence) / 2)


def test_the_value_ratio_after_long_idle_times_depends_on_their_ratio_only():
    sequence = _kept()
    hours, days = (_value(sequence, t) / _value(sequence, 2 * t) for t in (3600.0, 86400.0))
    assert hours == pytest.approx(days, rel=0.02)


def test_hits_raise_the_value():
    assert _value(_kept(num_hits=3)) > _value(_kept(num_hits=1)) > _value(_kept())


def test_a_recently_used_sequence_outranks_an_idle_one_with_many_hits():
    often, once = _kept(num_hits=1000, last_used_s=0.0), _kept(last_used_s=12.0)
    assert _value(often, 12.0) < _value(once, 12.0)


def test_more_bytes_for_the_same_prefix_lower_the_value():
    assert _value(_kept(checkpoint=900)) < _value(_kept())


def test_tokens_kept_by_an_anchor_count_for_neither_seconds_nor_bytes():
    plain = _kept(tokens=1000)
    anchored = _kept(tokens=1000, anchored_by=SequenceId(9), anchored_tokens=640)
    assert COST.own_bytes(plain) == COST.held_bytes(plain) == COST.held_bytes(anchored)
    assert COST.own_bytes(anchored) == COST.held_bytes(anchored) - 10 * 100
    assert COST.own_seconds(anchored) == pytest.approx(
        COST.prefill_seconds(1000) - COST.prefill_seconds(640)
    )


def test_a_short_conversation_after_a_long_anchor_has_a_lower_value_than_a_short_sequence():
    behind = _kept(tokens=6020, anchored_by=SequenceId(9), anchored_tokens=5952)
    assert _value(behind) < _value(_kept(tokens=600))


def test_a_clock_that_steps_back_does_not_raise_the_value():
    assert _value(_kept(last_used_s=50.0), 10.0) == _value(_kept(last_used_s=10.0), 10.0)


def test_values_stay_comparable_after_a_week_of_idle_time():
    week_s = 7 * 24 * 3600.0
    assert 0.0 <= _value(_kept(), week_s) < _value(_kept(), week_s / 2)


def test_policy_none_ranks_by_last_use_only():
    long_unused = _kept(tokens=30_000, num_hits=9, last_used_s=1.0)
    just_used = _kept(tokens=10, last_used_s=2.0)
    assert _value(long_unused, 3.0, "none") < _value(just_used, 3.0, "none")


@pytest.mark.parametrize(("name", "evicts"), [("cost", True), ("none", False)])
def test_only_policy_none_does_not_evict_entries_for_a_detach(name, evicts):
    policy = build_policy(name, COST)
    assert (policy.name, policy.evicts_for_detach) == (name, evicts)


def test_an_unknown_policy_is_refused_with_the_valid_names():
    with pytest.raises(ConfigurationError) as caught:
        build_policy("lru2", COST)
    assert all(name in caught.value.message for name in POLICY_NAMES)
