"""Small random models and new memory for tests, and the tolerances of logits.

Ships with the package, so that all tests build models the same way. Never used to serve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvreg_kernels.testing import Tolerance
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.checkpoint import text_shapes
from kvreg_service.model.config import LayerKind, ModelConfig
from kvreg_service.model.precision import accumulation_dtype

ORACLE_LOGITS_FP32 = 1e-4
"""Largest absolute difference from fp32 logits of transformers, which cause about half of it."""

SAME_LOGITS_FP64 = Tolerance("model.same_logits_fp64", relative_rms=1e-12, worst_element=1e-11)
"""The same logits for another split into steps, batches or pages: fp64 summation order."""

SAME_STATE_FP64 = Tolerance("model.same_state_fp64", relative_rms=1e-12, worst_element=1e-10)
"""Like SAME_LOGITS_FP64, for conv and recurrent states, whose elements vary more."""

_CPU = torch.device("cpu")


def tiny_config(
    *,
    layer_types: tuple[LayerKind, ...] = ("linear_attention", "full_attention"),
    vocab_size: int = 61,
    hidden_size: int = 24,
    intermediate_size: int = 40,
    attention_heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    linear_heads: tuple[int, int] = (4, 2),
    linear_head_dims: tuple[int, int] = (8, 12),
    conv_kernel: int = 4,
    partial_rotary_factor: float = 0.5,
    attention_bias: bool = False,
    tie_word_embeddings: bool = False,
) -> ModelConfig:
    """Returns a config of a few thousand parameters.

    Pairs are (query or value heads, key heads), and (K, V) sizes.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        layer_types=layer_types,
        num_attention_heads=attention_heads[0],
        num_key_value_heads=attention_heads[1],
        head_dim=head_dim,
        attention_bias=attention_bias,
        linear_num_value_heads=linear_heads[0],
        linear_num_key_heads=linear_heads[1],
        linear_key_head_dim=linear_head_dims[0],
        linear_value_head_dim=linear_head_dims[1],
        linear_conv_kernel_dim=conv_kernel,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        partial_rotary_factor=partial_rotary_factor,
        max_position_embeddings=4096,
        tie_word_embeddings=tie_word_embeddings,
        mtp_num_hidden_layers=0,
    )


def random_weights(
    config: ModelConfig, *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> dict[str, Tensor]:
    """Returns weights like ``load_weights``, scaled so that activations stay near 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in text_shapes(config).items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) > 1:
            weights[name] = (values / shape[-1] ** 0.5).to(dtype)
            continue
        # Norm weights, biases, dt_bias: near their neutral value. A_log: decays of 0.1 to 10.
        values = values * (1.0 if name.endswith("A_log") else 0.2)
        if name.endswith("linear_attn.norm.weight"):
            values = values + 1
        weights[name] = values.to(
            dtype if name.endswith("proj.bias") else accumulation_dtype(dtype)
        )
    return weights


def nan_memory(
    config: ModelConfig, *, num_slots: int, num_pages: int, dtype: torch.dtype = torch.float32
) -> tuple[StateSlots, KVPages]:
    """Returns memory on the CPU filled with NaN, so that a read before a write shows."""
    states = StateSlots.allocate(config, num_slots, dtype, _CPU)
    pages = KVPages.allocate(config, num_pages, dtype, _CPU)
    for tensor in (states.conv, states.recurrent, pages.kv):
        tensor.fill_(torch.nan)
    return states, pages
