"""The memory that a profile reserves for a model.

Imports no torch: `kvreg plan` needs the ``config.json`` of a model and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.memory.budget import (
    KVDtype,
    MemoryDemand,
    MemoryPlan,
    ModelShape,
    WeightFormat,
    kv_bytes_per_token,
    plan_memory,
    state_slot_bytes,
    weight_bytes,
)
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.engine.options import EngineOptions
from kvreg_service.model.config import ModelConfig

CPU_ACTIVATION_BYTES = 4
GPU_ACTIVATION_BYTES = 2

GPU_WORKSPACE_BYTES = 1 << 30
"""Set aside on a card for activations, the CUDA context and graphs. An assumption, not measured."""


def model_shape(config: ModelConfig) -> ModelShape:
    """Return the sizes of a configuration that memory depends on."""
    return ModelShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        is_tied=config.tie_word_embeddings,
        num_linear_layers=config.num_linear_layers,
        num_attention_layers=config.num_attention_layers,
        num_mtp_layers=config.mtp_num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        num_key_heads=config.linear_num_key_heads,
        num_value_heads=config.linear_num_value_heads,
        key_head_dim=config.linear_key_head_dim,
        value_head_dim=config.linear_value_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
    )


@dataclass(frozen=True)
class GpuProfile:
    """A profile on cards, for `kvreg plan`."""

    layout: SlotLayout
    tp: int
    gpu_memory_bytes: int
    max_context_tokens: int
    kv_dtype: KVDtype
    weight_format: WeightFormat
    with_mtp: bool = False
    workspace_bytes: int = GPU_WORKSPACE_BYTES
    num_pages: int | None = None


def plan_gpu(shape: ModelShape, profile: GpuProfile) -> MemoryPlan:
    """Return what each card of a profile would hold.

    Raises:
        ConfigurationError: the model cannot be split over ``tp`` cards.
    """
    shape.check_divisible(profile.tp)
    weights = weight_bytes(
        shape, tp=profile.tp, weight_format=profile.weight_format, with_mtp=profile.with_mtp
    )
    per_token = kv_bytes_per_token(
        shape, tp=profile.tp, kv_dtype=profile.kv_dtype, with_mtp=profile.with_mtp
    )
    demand = MemoryDemand(
        slot_bytes=state_slot_bytes(shape, tp=profile.tp, conv_bytes=GPU_ACTIVATION_BYTES),
        num_slots=profile.layout.num_slots,
        page_bytes=per_token * PAGE_TOKENS,
        weight_bytes=weights,
        workspace_bytes=profile.workspace_bytes,
        max_context_tokens=profile.max_context_tokens,
        num_pages=profile.num_pages,
    )
    return plan_memory(demand, profile.gpu_memory_bytes)


def plan_cpu(config: ModelConfig, options: EngineOptions) -> MemoryPlan:
    """Return what an engine on the CPU reserves. Weights are not part of its budget."""
    shape = model_shape(config)
    demand = MemoryDemand(
        slot_bytes=state_slot_bytes(shape, tp=1, conv_bytes=CPU_ACTIVATION_BYTES),
        num_slots=options.layout.num_slots,
        page_bytes=kv_bytes_per_token(shape, tp=1, kv_dtype=options.kv_dtype) * PAGE_TOKENS,
        max_context_tokens=options.max_context_tokens or config.max_position_embeddings,
        num_pages=options.num_pages,
    )
    plan = plan_memory(demand, options.memory_bytes)
    if options.max_context_tokens is not None:
        return plan
    # No context is configured: it is what the model and the pages allow.
    reachable = max(1, min(demand.max_context_tokens, plan.kv_tokens))
    return replace(plan, demand=replace(demand, max_context_tokens=reachable))
