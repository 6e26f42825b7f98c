"""One pass, chunks, single tokens, other slots and pages: the logits and the memory are the same.

In fp64, so that only a wrong read or write makes a significant difference.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvreg_kernels.testing import Tolerance, assert_close
from kvreg_service.model.cache import PAGE_TOKENS, KVPages, StateSlots
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.testing import (
    SAME_LOGITS_FP64,
    SAME_STATE_FP64,
    nan_memory,
    random_weights,
    tiny_config,
)

CONFIG = tiny_config(
    layer_types=("linear_attention", "full_attention", "linear_attention", "full_attention")
)
NUM_TOKENS = 200
TOKENS = torch.randint(CONFIG.vocab_size, (NUM_TOKENS,), generator=torch.Generator().manual_seed(7))
SLOT = 2
TABLE = [5, 1, 4, 2]
NUM_SLOTS, NUM_PAGES = 4, 7
BITWISE = Tolerance("bit-identical", 0.0, 0.0)


@dataclass
class Outcome:
    """The logits and the memory after a run."""

    logits: Tensor
    states: StateSlots
    pages: KVPages

    def conv(self, slot: int = SLOT) -> Tensor:
        return self.states.conv[:, slot]

    def recurrent(self, slot: int = SLOT) -> Tensor:
        return self.states.recurrent[:, slot]

    def kv(self, page_table: list[int]) -> Tensor:
        context = self.pages.context(page_table, NUM_TOKENS)
        return torch.cat([torch.cat(self.pages.read(i, context, torch.float64)) for i in range(2)])


@pytest.fixture(scope="module")
def model() -> HybridModel:
    weights = random_weights(CONFIG, dtype=torch.float64)
    return HybridModel(CONFIG, weights, torch.device("cpu"))


def run(
    model: HybridModel, cuts: list[int], slot: int = SLOT, page_table: list[int] | None = None
) -> Outcome:
    """Prefill the pieces between the cuts; a piece of one token is decoded."""
    table = page_table or TABLE
    states, pages = nan_memory(
        CONFIG, num_slots=NUM_SLOTS, num_pages=NUM_PAGES, dtype=torch.float64
    )
    logits = None
    for start, stop in itertools.pairwise([0, *cuts, NUM_TOKENS]):
        if start and stop - start == 1:
            token = int(TOKENS[start])
            logits = model.decode([token], [start], [slot], [table], states, pages)[0]
        else:
            logits = model.prefill(TOKENS[start:stop], start, slot, table, states, pages)
    assert logits is not None
    return Outcome(logits, states, pages)


def assert_same(actual: Outcome, expected: Outcome) -> None:
    assert_close(actual.logits, expected.logits, SAME_LOGITS_FP64, "logits")
    assert_close(actual.conv(), expected.conv(), SAME_STATE_FP64, "conv state")
    assert_close(actual.recurrent(), expected.recurrent(), SAME_STATE_FP64, "recurrent state")
    assert_close(actual.kv(TABLE), expected.kv(TABLE), SAME_STATE_FP64, "keys and values")


@pytest.fixture(scope="module")
def whole(model: HybridModel) -> Outcome:
    return run(model, [])


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 63, 64, 65, 127, 128, 129, 192, 198, 199])
def test_two_chunks_equal_one_pass(model: HybridModel, whole: Outcome, cut: int) -> None:
    assert_same(run(model, [cut]), whole)


def test_many_chunks_equal_one_pass(model: HybridModel, whole: Outcome) -> None:
    assert_same(run(model, [3, 4, 6, 60, 61, 130, 197]), whole)


def test_token_by_token_equals_one_pass(model: HybridModel, whole: Outcome) -> None:
    assert_same(run(model, list(range(1, NUM_TOKENS))), whole)


def test_a_prefilled_token_equals_a_decoded_one(model: HybridModel, whole: Outcome) -> None:
    prefilled = run(model, [199])
    states, pages = nan_memory(
        CONFIG, num_slots=NUM_SLOTS, num_pages=NUM_PAGES, dtype=torch.float64
    )
    model.prefill(TOKENS[:199], 0, SLOT, TABLE, states, pages)
    logits = model.prefill(TOKENS[199:], 199, SLOT, TABLE, states, pages)
    assert_close(logits, prefilled.logits, SAME_LOGITS_FP64, "logits")
    assert_close(states.recurrent[:, SLOT], whole.recurrent(), SAME_STATE_FP64, "state")


def test_the_same_split_is_bit_identical(model: HybridModel) -> None:
    first, second = run(model, [70, 71, 150]), run(model, [70, 71, 150])
    assert_close(first.logits, second.logits, BITWISE, "logits")
    assert torch.equal(first.recurrent(), second.recurrent())


def test_a_piece_longer_than_a_query_tile_equals_its_parts() -> None:
    config = tiny_config(layer_types=("full_attention",))
    weights = random_weights(config, dtype=torch.float64)
    model = HybridModel(config, weights, torch.device("cpu"))
    tokens = torch.randint(config.vocab_size, (600,), generator=torch.Generator().manual_seed(1))
    table = list(range(10))
    logits = []
    for cuts in ([0, 50, 600], [0, 50, 190, 300, 600]):
        states, pages = nan_memory(config, num_slots=1, num_pages=10, dtype=torch.float64)
        for start, stop in itertools.pairwise(cuts):
            last = model.prefill(tokens[start:stop], start, 0, table, states, pages)
        logits.append(last)
    assert_close(logits[0], logits[1], SAME_LOGITS_FP64, "logits")


@pytest.mark.parametrize("page_table", [[0, 1, 2, 3], [3, 4, 5, 6], [6, 4, 2, 0], [0, 1, 3, 2]])
@pytest.mark.parametrize("cuts", [[], [100, 199]])
def test_the_order_of_pages_does_not_matter(
    model: HybridModel, whole: Outcome, page_table: list[int], cuts: list[int]
) -> None:
    moved = run(model, cuts, page_table=page_table)
    assert_close(moved.logits, whole.logits, SAME_LOGITS_FP64, "logits")
    assert_close(moved.kv(page_table), whole.kv(TABLE), SAME_STATE_FP64, "keys and values")


def test_the_slot_does_not_matter(model: HybridModel, whole: Outcome) -> None:
    moved = run(model, [100], slot=0)
    assert_close(moved.logits, whole.logits, SAME_LOGITS_FP64, "logits")
    assert_close(moved.recurrent(0), whole.recurrent(), SAME_STATE_FP64, "recurrent state")


def test_pages_promised_beyond_the_context_are_not_read(model: HybridModel, whole: Outcome) -> None:
    longer = run(model, [100, 199], page_table=[*TABLE, 0, 6])
    assert_close(longer.logits, whole.logits, SAME_LOGITS_FP64, "logits")


def test_other_slots_are_not_written(whole: Outcome) -> None:
    others = [slot for slot in range(NUM_SLOTS) if slot != SLOT]
    assert whole.states.conv[:, others].isnan().all()
    assert whole.states.recurrent[:, others].isnan().all()


def test_other_pages_and_the_tail_of_the_last_are_not_written(whole: Outcome) -> None:
    pages = torch.unflatten(whole.pages.kv, 2, (NUM_PAGES, PAGE_TOKENS))
    others = [page for page in range(NUM_PAGES) if page not in TABLE]
    assert pages[:, :, others].isnan().all()
    assert pages[:, :, TABLE[-1], NUM_TOKENS % PAGE_TOKENS :].isnan().all()


def test_a_state_copied_to_another_slot_continues_there(model: HybridModel, whole: Outcome) -> None:
    states, pages = nan_memory(
        CONFIG, num_slots=NUM_SLOTS, num_pages=NUM_PAGES, dtype=torch.float64
    )
    model.prefill(TOKENS[:120], 0, SLOT, TABLE, states, pages)
    states.copy(SLOT, 3)
    # A side request overwrites the first slot before the session continues in the other.
    model.prefill(TOKENS[:30].flip(0), 0, SLOT, [0], states, pages)
    logits = model.prefill(TOKENS[120:], 120, 3, TABLE, states, pages)
    assert_close(logits, whole.logits, SAME_LOGITS_FP64, "logits")


def test_going_back_to_a_copy_overwrites_what_was_appended(
    model: HybridModel, whole: Outcome
) -> None:
    states, pages = nan_memory(
        CONFIG, num_slots=NUM_SLOTS, num_pages=NUM_PAGES, dtype=torch.float64
    )
    model.prefill(TOKENS[:120], 0, SLOT, TABLE, states, pages)
    states.copy(SLOT, 0)
    model.prefill(TOKENS[120:180].flip(0), 120, SLOT, TABLE, states, pages)
    states.copy(0, SLOT)
    logits = model.prefill(TOKENS[120:], 120, SLOT, TABLE, states, pages)
    assert_close(logits, whole.logits, SAME_LOGITS_FP64, "logits")
