"""The Gated DeltaNet layer: projections, a short causal convolution, the gated delta rule, a norm.

Owns the layer's weights. Its conv and recurrent states belong to ``StateSlots`` and come with the
step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_kernels.gated_delta_rule import gated_delta_rule
from kvreg_kernels.unit_length import unit_length
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.precision import accumulation_dtype
from kvreg_service.model.projection import Projection
from kvreg_service.model.step import Step


class GatedDeltaNet:
    """One layer; ``index`` counts the Gated DeltaNet layers only."""

    def __init__(
        self, index: int, config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.index = index
        self.key_heads = config.linear_num_key_heads
        self.value_heads = config.linear_num_value_heads
        self.key_dim = config.linear_key_head_dim
        self.value_dim = config.linear_value_head_dim
        self.input_epsilon = config.hidden_size * config.rms_norm_eps
        self.output_epsilon = self.value_dim * config.rms_norm_eps
        self.sizes = (
            2 * config.linear_key_size,
            config.linear_value_size,
            config.linear_value_size,
            self.value_heads,
            self.value_heads,
        )
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        self.in_proj = Projection.fused(
            [weights[f"linear_attn.{name}.weight"] for name in names],
            device,
            norm=1 + weights["input_layernorm.weight"],
        )
        # The gated norm's weight is repeated for each value head.
        out_norm = weights["linear_attn.norm.weight"].repeat(self.value_heads)
        self.out_proj = Projection.fused(
            [weights["linear_attn.out_proj.weight"]],
            device,
            norm=out_norm / self.value_heads**0.5,
        )
        self.conv_weight = (
            weights["linear_attn.conv1d.weight"].to(device).squeeze(1).t().contiguous()
        )
        exact = accumulation_dtype(self.in_proj.matrix.dtype)
        self.decay_rate = -weights["linear_attn.A_log"].to(device, exact).exp()
        self.dt_bias = weights["linear_attn.dt_bias"].to(device, exact)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Returns what is added to the residual stream.

        Shapes:
            x [N, hidden] with N = sequences * tokens; returns the same shape.

        Effects:
            Advances the layer's conv and recurrent states of the step.
        """
        batch, tokens = step.num_sequences, step.num_tokens
        projected = self.in_proj(unit_length(x, self.input_epsilon))
        conv_size = self.sizes[0] + self.sizes[1]
        mixed = causal_conv(
            projected[:, :conv_size].view(batch, tokens, conv_size),
            self.conv_weight,
            step.states.conv[self.index],
        )
        qk, v = torch.split_with_sizes(mixed, self.sizes[:2], dim=-1)
        z, beta, decay = torch.split_with_sizes(projected[:, conv_size:], self.sizes[2:], dim=-1)
        log_decay = F.softplus(decay.to(self.dt_bias.dtype) + self.dt_bias) * self.decay_rate
        out = gated_delta_rule(
            qk.view(batch, tokens, 2, self.key_heads, self.key_dim),
            v.view(batch, tokens, self.value_heads, self.value_dim),
            log_decay.view(batch, tokens, -1),
            beta.sigmoid().view(batch, tokens, -1),
            step.states.recurrent[self.index],
        )
        normed = unit_length(out, self.output_epsilon).reshape(batch * tokens, -1)
        return self.out_proj(normed * F.silu(z))


def causal_conv(x: Tensor, weight: Tensor, state: Tensor) -> Tensor:
    """Applies a depthwise causal convolution and SiLU.

    Shapes:
        x [B, T, C]; weight [K, C], oldest input first; state [B, K - 1, C]; returns [B, T, C].

    Effects:
        ``state`` becomes the last K - 1 inputs.
    """
    tokens = x.shape[1]
    window = torch.cat((state, x), dim=1)
    state.copy_(window[:, tokens:])
    if tokens == 1:
        return F.silu((window * weight).sum(1, keepdim=True))
    out = window[:, :tokens] * weight[0]
    for offset in range(1, weight.shape[0]):
        out.addcmul_(window[:, offset : offset + tokens], weight[offset])
    return F.silu(out)
