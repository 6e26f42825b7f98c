"""The gated MLP behind every mixer. Owns its weights, holds no state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_kernels.unit_length import unit_length
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.projection import Projection


class FeedForward:
    """SwiGLU with the norm before it."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.input_epsilon = config.hidden_size * config.rms_norm_eps
        self.sizes = (config.intermediate_size, config.intermediate_size)
        self.gate_up = Projection.fused(
            [weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]],
            device,
            norm=1 + weights["post_attention_layernorm.weight"],
        )
        self.down = Projection.fused([weights["mlp.down_proj.weight"]], device)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns what is added to the residual stream. Shapes: x [N, hidden], result the same."""
        gate_up = self.gate_up(unit_length(x, self.input_epsilon))
        gate, up = torch.split_with_sizes(gate_up, self.sizes, dim=-1)
        return self.down(F.silu(gate) * up)
