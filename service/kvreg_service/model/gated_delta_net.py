"""The Gated DeltaNet layer: projections, a short causal convolution, the gated delta rule, a norm.

Owns the layer's weights. Its conv and recurrent states belong to ``StateSlots`` and are passed with
the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_kernels.gated_delta_rule import bind_gated_delta_rule
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.precision import accumulation_dtype
from kvreg_service.model.projection import Projection, rms_direction
from kvreg_service.model.step import Step


class GatedDeltaNetBuffers:
    """The scratch buffers of the layer, for T tokens of each of B sequences; N = B * T rows.

    All layers share one instance, as they run one after the other. ``projected`` is written by one
    product and read in parts.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_sequences: int,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        num_rows = num_sequences * num_tokens
        heads, value_size = config.linear_num_value_heads, config.linear_value_size
        channels, taps = config.conv_channels, config.linear_conv_kernel_dim
        exact = accumulation_dtype(dtype)

        def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.unit = empty(num_rows, config.hidden_size)
        sizes = (channels, value_size, heads, heads)
        self.projected = empty(num_rows, sum(sizes))
        new, self.gate, self.raw_beta, self.raw_decay = torch.split_with_sizes(
            self.projected, sizes, dim=1
        )
        # The window of the convolution: the columns of the state, then the new ones.
        self.new_columns = new.view(num_sequences, num_tokens, channels)
        self.window = empty(num_sequences, taps - 1 + num_tokens, channels)
        self.kept_columns = self.window[:, num_tokens:]
        self.taps = [self.window[:, tap : tap + num_tokens] for tap in range(taps)]
        self.weighted = empty(num_sequences, taps, channels, dtype=exact)
        self.mixed = empty(num_sequences, num_tokens, channels, dtype=exact)

        self.log_decay = empty(num_rows, heads, dtype=exact)
        self.beta = empty(num_rows, heads, dtype=exact)
        key_shape = (2, config.linear_num_key_heads, config.linear_key_head_dim)
        qk = self.mixed[..., : 2 * config.linear_key_size]
        v = self.mixed[..., 2 * config.linear_key_size :]
        self.rule = bind_gated_delta_rule(
            qk.view(num_sequences, num_tokens, *key_shape),
            v.view(num_sequences, num_tokens, heads, config.linear_value_head_dim),
            self.log_decay.view(num_sequences, num_tokens, heads),
            self.beta.view(num_sequences, num_tokens, heads),
        )
        self.normed = empty(
            num_sequences, num_tokens, heads, config.linear_value_head_dim, dtype=exact
        )
        self.normed_rows = self.normed.view(num_rows, value_size)
        self.gated = empty(num_rows, value_size)


class GatedDeltaNet:
    """One layer; ``index`` counts the Gated DeltaNet layers only."""

    def __init__(
        self, index: int, config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.index = index
        layer = {name.removeprefix("linear_attn."): weight for name, weight in weights.items()}
        dtype, eps = layer["out_proj.weight"].dtype, config.rms_norm_eps
        self.input_norm = rms_direction(config.hidden_size, eps, dtype, device)
        self.output_norm = rms_direction(config.linear_value_head_dim, eps, dtype, device)
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        self.in_proj = Projection.fused(
            [layer[f"{name}.weight"] for name in names],
            device,
            norm=1 + layer["input_layernorm.weight"],
        )
        # The norm is per value head: its weight is repeated for each head.
        heads = config.linear_num_value_heads
        self.out_proj = Projection.fused(
            [layer["out_proj.weight"]], device, norm=layer["norm.weight"].repeat(heads) / heads**0.5
        )
        exact = accumulation_dtype(dtype)
        self.conv_weight = layer["conv1d.weight"].to(device, exact).squeeze(1).t().contiguous()
        self.decay_rate = -layer["A_log"].to(device, exact).exp()
        self.dt_bias = layer["dt_bias"].to(device, exact)

    def __call__(self, x: Tensor, buffers: GatedDeltaNetBuffers, step: Step) -> None:
        """Adds the layer's output to the residual stream x [N, hidden].

        Effects:
            Advances the conv and recurrent states of the layer.
        """
        self.input_norm(x, out=buffers.unit)
        self.in_proj(buffers.unit, out=buffers.projected)
        self._convolve(buffers, step.states.conv[self.index])
        time_step = F.softplus(buffers.raw_decay + self.dt_bias)
        torch.mul(time_step, self.decay_rate, out=buffers.log_decay)
        torch.sigmoid(buffers.raw_beta, out=buffers.beta)
        read = buffers.rule(step.states.recurrent[self.index])
        self.output_norm(read, out=buffers.normed)
        gate = F.silu(buffers.gate, inplace=True)
        torch.mul(buffers.normed_rows, gate, out=buffers.gated)
        self.out_proj.add_to(x, buffers.gated)

    def _convolve(self, buffers: GatedDeltaNetBuffers, state: Tensor) -> None:
        """Depthwise causal convolution and SiLU; ``state`` is set to the last columns."""
        torch.cat((state, buffers.new_columns), dim=1, out=buffers.window)
        state.copy_(buffers.kept_columns)
        if buffers.mixed.shape[1] == 1:
            torch.mul(buffers.window, self.conv_weight, out=buffers.weighted)
            torch.sum(buffers.weighted, dim=1, keepdim=True, out=buffers.mixed)
        else:
            torch.mul(buffers.taps[0], self.conv_weight[0], out=buffers.mixed)
            for columns, weight in zip(buffers.taps[1:], self.conv_weight[1:], strict=True):
                buffers.mixed.addcmul_(columns, weight)
        F.silu(buffers.mixed, inplace=True)
