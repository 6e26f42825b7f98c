"""Memory arithmetic: bytes of states, pages and weights, and what fits.

The engine reserves memory by it at the start; `kvreg plan` and `POST /admin/fit` report it. All
sizes are per card ("rank"); tensor parallelism divides heads and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvreg_service.core.errors import ConfigurationError, DoesNotFit
from kvreg_service.core.ids import PAGE_TOKENS, pages_for

GIB = 1 << 30

KV_GROUP = 64
"""Elements of a head that share one fp16 scale in INT8 keys and values."""

_NVFP4_BYTES = 0.5 + 1 / 16
"""Half a byte an element and one E4M3 scale for each 16."""

_FP8_MLP_LAYERS = 8
"""The last MLPs of a mixed NVFP4 checkpoint that are row-scaled FP8 instead."""


class KVDtype(Enum):
    """How keys and values are stored."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


class WeightFormat(Enum):
    """How the matrices of a checkpoint are stored on the device."""

    FP32 = "fp32"
    FP16 = "fp16"
    NVFP4_MIXED = "nvfp4-mixed"
    """NVFP4 for the MLPs, row-scaled FP8 for the last 8 of them, attention, Gated DeltaNet and
    lm_head, 16 bit for the rest."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a hybrid model that memory depends on."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    is_tied: bool
    num_linear_layers: int
    num_attention_layers: int
    num_mtp_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        key_size = self.num_key_heads * self.key_head_dim
        return 2 * key_size + self.num_value_heads * self.value_head_dim

    def check_divisible(self, tp: int) -> None:
        """Raise ConfigurationError when heads or columns cannot be split over ``tp`` cards."""
        for name, count in (
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_kv_heads),
            ("linear_num_key_heads", self.num_key_heads),
            ("linear_num_value_heads", self.num_value_heads),
            ("intermediate_size", self.intermediate_size),
        ):
            if tp < 1 or count % tp:
                raise ConfigurationError(
                    f"tp is {tp}, and {name} = {count} is not a multiple of it", tp=tp
                )


def state_slot_bytes(shape: ModelShape, *, tp: int, conv_bytes: int) -> int:
    """Return the bytes of one state slot: recurrent states in fp32 and convolution columns.

    Args:
        shape: the model.
        tp: cards that share it.
        conv_bytes: bytes of one element of the convolution columns.
    """
    recurrent = shape.num_value_heads // tp * shape.key_head_dim * shape.value_head_dim * 4
    conv = shape.conv_channels // tp * (shape.conv_kernel - 1) * conv_bytes
    return shape.num_linear_layers * (recurrent + conv)


def kv_bytes_per_token(
    shape: ModelShape, *, tp: int, kv_dtype: KVDtype, with_mtp: bool = False
) -> int:
    """Return the bytes of keys and values of one token over all full-attention layers."""
    match kv_dtype:
        case KVDtype.FP32:
            head = shape.head_dim * 4
        case KVDtype.FP16:
            head = shape.head_dim * 2
        case KVDtype.INT8:
            if shape.head_dim % KV_GROUP:
                raise ConfigurationError(
                    f"kv_dtype is int8, and head_dim = {shape.head_dim} is not a multiple of "
                    f"{KV_GROUP}"
                )
            head = shape.head_dim + shape.head_dim // KV_GROUP * 2
    layers = shape.num_attention_layers + (shape.num_mtp_layers if with_mtp else 0)
    return layers * 2 * (shape.num_kv_heads // tp) * head


def weight_bytes(
    shape: ModelShape, *, tp: int, weight_format: WeightFormat, with_mtp: bool = False
) -> int:
    """Return the bytes of the weights on one card, counted from the shape.

    Embeddings and lm_head are split over the vocabulary. Norms, biases and the small projections
    of the gates are counted at 16 bit (32 bit for fp32) and not split.
    """
    plain = 4.0 if weight_format is WeightFormat.FP32 else 2.0
    is_mixed = weight_format is WeightFormat.NVFP4_MIXED
    fp8 = 1.0 if is_mixed else plain
    fp4 = _NVFP4_BYTES if is_mixed else plain
    hidden = shape.hidden_size
    num_layers = shape.num_linear_layers + shape.num_attention_layers
    mlp = 3 * hidden * shape.intermediate_size
    query = shape.num_attention_heads * shape.head_dim
    attention = hidden * (3 * query + 2 * shape.num_kv_heads * shape.head_dim)
    value = shape.num_value_heads * shape.value_head_dim
    linear = hidden * (shape.conv_channels + 2 * value)
    gates = 2 * hidden * shape.num_value_heads + shape.conv_channels * shape.conv_kernel
    num_fp8_mlps = min(_FP8_MLP_LAYERS, num_layers)
    split = (
        (num_layers - num_fp8_mlps) * mlp * fp4
        + num_fp8_mlps * mlp * fp8
        + shape.num_attention_layers * attention * fp8
        + shape.num_linear_layers * linear * fp8
        + shape.vocab_size * hidden * plain
        + (0 if shape.is_tied else shape.vocab_size * hidden * fp8)
    )
    whole = num_layers * 2 * hidden * plain + shape.num_linear_layers * gates * plain
    if with_mtp:
        split += shape.num_mtp_layers * (mlp + attention) * fp8
        whole += shape.num_mtp_layers * 2 * hidden * hidden * plain
    return round(split / tp + whole)


@dataclass(frozen=True)
class MemoryDemand:
    """What one card must hold.

    ``num_pages`` sets the number of pages; None means as many as fit.
    """

    slot_bytes: int
    num_slots: int
    page_bytes: int
    max_context_tokens: int
    weight_bytes: int = 0
    workspace_bytes: int = 0
    num_pages: int | None = None

    @property
    def fixed_bytes(self) -> int:
        """Bytes that depend on neither lanes nor entries nor the context."""
        return self.weight_bytes + self.workspace_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """What one card will hold, and what is left, which is negative if it does not fit."""

    demand: MemoryDemand
    available_bytes: int
    state_bytes: int
    num_pages: int
    kv_bytes: int

    @property
    def required_bytes(self) -> int:
        """The minimum: weights, workspace, states, and pages for one full context."""
        demand = self.demand
        num_pages = max(demand.num_pages or 0, pages_for(demand.max_context_tokens))
        return demand.fixed_bytes + self.state_bytes + num_pages * demand.page_bytes

    @property
    def short_by_bytes(self) -> int:
        """Missing bytes: of the memory, or of the configured pages; 0 if it fits."""
        missing_pages = max(0, pages_for(self.demand.max_context_tokens) - self.num_pages)
        return max(
            0,
            self.required_bytes - self.available_bytes,
            missing_pages * self.demand.page_bytes if self.demand.num_pages is not None else 0,
        )

    @property
    def fits(self) -> bool:
        """Whether the minimum fits."""
        return self.short_by_bytes == 0

    def kept_tokens(self, lanes: int) -> int:
        """Return the tokens that sequences at rest can hold while every lane is full."""
        return max(0, self.kv_tokens - lanes * self.demand.max_context_tokens)

    @property
    def left_bytes(self) -> int:
        """Bytes that neither weights nor states nor pages use."""
        used = self.demand.fixed_bytes + self.state_bytes + self.kv_bytes
        return self.available_bytes - used

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pages hold."""
        return self.num_pages * PAGE_TOKENS

    def require_fit(self) -> None:
        """Raise DoesNotFit, with the missing bytes, if the plan does not fit."""
        if self.fits:
            return
        demand = self.demand
        raise DoesNotFit(
            f"{self.required_bytes} bytes are needed ({demand.fixed_bytes} for weights and "
            f"workspace, {self.state_bytes} for {demand.num_slots} state slots of "
            f"{demand.slot_bytes}, the rest for pages of {demand.page_bytes} that hold a context "
            f"of {demand.max_context_tokens} tokens) and {self.available_bytes} are available: "
            f"short by {self.short_by_bytes} bytes ({self.short_by_bytes / GIB:.2f} GiB)",
            short_by_bytes=self.short_by_bytes,
            required_bytes=self.required_bytes,
            available_bytes=self.available_bytes,
        )


def plan_memory(demand: MemoryDemand, available_bytes: int) -> MemoryPlan:
    """Divide the available bytes. Pages get what weights, workspace and states leave."""
    state_bytes = demand.num_slots * demand.slot_bytes
    rest = max(0, available_bytes - demand.fixed_bytes - state_bytes)
    fitting = rest // demand.page_bytes if demand.page_bytes else 0
    num_pages = fitting if demand.num_pages is None else demand.num_pages
    return MemoryPlan(
        demand=demand,
        available_bytes=available_bytes,
        state_bytes=state_bytes,
        num_pages=num_pages,
        kv_bytes=num_pages * demand.page_bytes,
    )
