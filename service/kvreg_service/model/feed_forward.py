"""The gated MLP after every mixer. Owns its weights; has no state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_service.model.config import ModelConfig
from kvreg_service.model.projection import Projection, rms_direction


class FeedForwardBuffers:
    """The scratch buffers of the layer; all layers share one, as they run one after the other."""

    def __init__(
        self, config: ModelConfig, num_rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        inner = config.intermediate_size
        self.unit = torch.empty((num_rows, config.hidden_size), dtype=dtype, device=device)
        self.gate_up = torch.empty((num_rows, 2 * inner), dtype=dtype, device=device)
        self.gate = self.gate_up[:, :inner]
        self.up = self.gate_up[:, inner:]


class FeedForward:
    """SwiGLU with its preceding norm."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        dtype = weights["mlp.gate_proj.weight"].dtype
        self.input_norm = rms_direction(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.gate_up = Projection.fused(
            [weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]],
            device,
            norm=1 + weights["post_attention_layernorm.weight"],
        )
        self.down = Projection.fused([weights["mlp.down_proj.weight"]], device)

    def __call__(self, x: Tensor, buffers: FeedForwardBuffers) -> None:
        """Adds the layer's output to the residual stream x [N, hidden]."""
        self.input_norm(x, out=buffers.unit)
        self.gate_up(buffers.unit, out=buffers.gate_up)
        F.silu(buffers.gate, inplace=True).mul_(buffers.up)
        self.down.add_to(x, buffers.gate)
