"""Dtypes other than fp32 for weights and memory."""

from __future__ import annotations

import pytest
import torch

from kvreg_kernels.testing import Tolerance, assert_close
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.testing import nan_memory, random_weights, tiny_config

CONFIG = tiny_config()
TOKENS = torch.randint(CONFIG.vocab_size, (80,), generator=torch.Generator().manual_seed(3))
TOLERANCES = {
    torch.float16: Tolerance("model.fp16_weights", relative_rms=5e-3, worst_element=3e-2),
    torch.bfloat16: Tolerance("model.bf16_weights", relative_rms=4e-2, worst_element=2e-1),
}


def logits(dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> torch.Tensor:
    model = HybridModel(CONFIG, random_weights(CONFIG, dtype=dtype), torch.device("cpu"))
    states, pages = nan_memory(CONFIG, num_slots=1, num_pages=2, dtype=dtype)
    if kv_dtype is not None:
        pages = KVPages(pages.kv.to(kv_dtype))
    model.prefill(TOKENS[:78], 0, 0, [1, 0], states, pages)
    return torch.cat(
        [model.decode([int(TOKENS[i])], [i], [0], [[1, 0]], states, pages) for i in (78, 79)]
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_narrow_weights_stay_near_fp64(dtype: torch.dtype) -> None:
    assert_close(logits(dtype), logits(torch.float64), TOLERANCES[dtype], "logits")


def test_keys_and_values_may_be_narrower_than_the_weights() -> None:
    actual = logits(torch.float32, kv_dtype=torch.float16)
    assert_close(actual, logits(torch.float64), TOLERANCES[torch.float16], "logits")


def test_narrow_weights_give_fp32_logits() -> None:
    assert logits(torch.bfloat16).dtype == torch.float32


def test_recurrent_states_are_fp32_beside_narrow_convolution_states() -> None:
    states = StateSlots.allocate(CONFIG, 1, torch.bfloat16, torch.device("cpu"))
    assert (states.conv.dtype, states.recurrent.dtype) == (torch.bfloat16, torch.float32)


def test_building_a_model_takes_the_tensors_out_of_the_dictionary() -> None:
    weights = random_weights(CONFIG)
    HybridModel(CONFIG, weights, torch.device("cpu"))
    assert weights == {}
