"""The cost model: seconds of prefill, and bytes held."""

from __future__ import annotations

import pytest

from kvreg_service.core.states.cost import CostModel


@pytest.mark.parametrize(("num_tokens", "tokens_per_s"), [(4096, 1121.1), (32768, 1029.2)])
def test_the_default_rates_give_the_measured_prefill_rates(num_tokens, tokens_per_s):
    assert num_tokens / CostModel().prefill_seconds(num_tokens) == pytest.approx(
        tokens_per_s, rel=1e-3
    )


def test_prefill_grows_faster_than_linearly():
    model = CostModel()
    assert model.prefill_seconds(200_000) > 10 * model.prefill_seconds(20_000)


@pytest.mark.parametrize("after", [0, 100])
def test_prefilling_no_tokens_takes_no_time(after):
    assert CostModel().prefill_seconds(after, after) == 0.0


@pytest.mark.parametrize("after", [0, 1, 500, 999])
def test_a_prefill_in_two_parts_takes_as_long_as_in_one(after):
    model = CostModel()
    parts = model.prefill_seconds(after) + model.prefill_seconds(1000, after)
    assert parts == pytest.approx(model.prefill_seconds(1000))


def test_held_bytes_are_those_of_states_and_pages():
    assert CostModel(slot_bytes=1000, page_bytes=100).held_bytes(2, 16) == 3600
