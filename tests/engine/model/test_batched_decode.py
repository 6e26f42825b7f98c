"""A batch gives each sequence the same logits as alone, and changes no other slot or page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from kvreg_kernels.testing import assert_close
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.testing import (
    SAME_LOGITS_FP64,
    SAME_STATE_FP64,
    nan_memory,
    random_weights,
    tiny_config,
)

CONFIG = tiny_config(layer_types=("linear_attention", "full_attention", "linear_attention"))
NUM_SLOTS = 6
LENGTHS = [1, 63, 64, 100]
TABLES = [[9, 0], [1, 2], [7, 3], [5, 8]]
NUM_STEPS = 3


@pytest.fixture(scope="module")
def model() -> HybridModel:
    weights = random_weights(CONFIG, dtype=torch.float64)
    return HybridModel(CONFIG, weights, torch.device("cpu"))


def prefilled(model: HybridModel, slots: list[int]) -> tuple[StateSlots, KVPages]:
    states, pages = nan_memory(CONFIG, num_slots=NUM_SLOTS, num_pages=10, dtype=torch.float64)
    for i, slot in enumerate(slots):
        generator = torch.Generator().manual_seed(i)
        tokens = torch.randint(CONFIG.vocab_size, (LENGTHS[i],), generator=generator)
        model.prefill(tokens, 0, slot, TABLES[i], states, pages)
    return states, pages


def decode(
    model: HybridModel, who: list[int], slots: list[int], states: StateSlots, pages: KVPages
) -> Tensor:
    """Logits [steps, sequences, vocab] of some steps with fixed tokens."""
    steps = [
        model.decode(
            [(7 * i + step) % CONFIG.vocab_size for i in who],
            [LENGTHS[i] + step for i in who],
            [slots[i] for i in who],
            [TABLES[i] for i in who],
            states,
            pages,
        )
        for step in range(NUM_STEPS)
    ]
    return torch.stack(steps)


SLOT_ORDERS = [[0, 1, 2, 3], [2, 3, 4, 5], [3, 1, 5, 0]]


@pytest.mark.parametrize("slots", SLOT_ORDERS)
def test_a_batch_equals_its_sequences_alone(model: HybridModel, slots: list[int]) -> None:
    states, pages = prefilled(model, slots)
    together = decode(model, [0, 1, 2, 3], slots, states, pages)
    states_alone, pages_alone = prefilled(model, slots)
    for i, slot in enumerate(slots):
        alone = decode(model, [i], slots, states_alone, pages_alone)
        assert_close(alone[:, 0], together[:, i], SAME_LOGITS_FP64, f"logits of sequence {i}")
        for name in ("conv", "recurrent"):
            expected = getattr(states_alone, name)[:, slot]
            actual = getattr(states, name)[:, slot]
            assert_close(actual, expected, SAME_STATE_FP64, f"{name} state of sequence {i}")


@pytest.mark.parametrize("slots", SLOT_ORDERS)
def test_sequences_that_do_not_run_keep_their_bytes(model: HybridModel, slots: list[int]) -> None:
    states, pages = prefilled(model, slots)
    before = states.conv.clone(), states.recurrent.clone(), pages.kv.clone()
    decode(model, [1, 3], slots, states, pages)
    idle = [slot for slot in range(NUM_SLOTS) if slot not in (slots[1], slots[3])]
    assert torch.equal(states.conv[:, idle].view(torch.int64), before[0][:, idle].view(torch.int64))
    assert torch.equal(
        states.recurrent[:, idle].view(torch.int64), before[1][:, idle].view(torch.int64)
    )
    for page in (*TABLES[0], *TABLES[2]):
        rows = slice(64 * page, 64 * page + 64)
        assert torch.equal(
            pages.kv[:, :, rows].view(torch.int64), before[2][:, :, rows].view(torch.int64)
        )


def test_the_order_within_a_batch_does_not_matter(model: HybridModel) -> None:
    slots = [0, 1, 2, 3]
    forward = decode(model, [0, 1, 2, 3], slots, *prefilled(model, slots))
    backward = decode(model, [3, 2, 1, 0], slots, *prefilled(model, slots))
    assert_close(backward.flip(1), forward, SAME_LOGITS_FP64, "logits")


def test_a_slot_may_not_appear_twice(model: HybridModel) -> None:
    states, pages = prefilled(model, [0, 1, 2, 3])
    with pytest.raises(AssertionError, match="twice"):
        model.decode([1, 2], [1, 63], [0, 0], TABLES[:2], states, pages)


@pytest.fixture
def eager_thread_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_thread_switches")
def test_threads_that_share_a_model_do_not_disturb_each_other(model: HybridModel) -> None:
    slots = [0, 1, 2, 3]
    pairs = ([0, 1], [2, 3])

    def decode_for_long(who: list[int]) -> Tensor:
        states, pages = prefilled(model, slots)
        return torch.stack([decode(model, who, slots, states, pages) for _ in range(20)])

    alone = [decode_for_long(who) for who in pairs]
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(decode_for_long, pairs))
    for actual, expected in zip(together, alone, strict=True):
        assert_close(actual, expected, SAME_LOGITS_FP64, "logits")
