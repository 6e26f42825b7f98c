"""The contract of each op of the training module.

Inference has its own ops in ``kvreg_kernels``; these are differentiable and keep no state.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from kvreg_training.shape import GatedDeltaShape


class Ops(Protocol):
    """The ops of the training module. All tensors are fp32, all sequences right-padded."""

    @property
    def name(self) -> str:
        """The name in logs and options."""
        ...

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x @ weight.T``."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """``weight * x / rms(x)`` over the last dimension."""
        ...

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """``rms_norm(x) * silu(gate)``."""
        ...

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """``silu(gate) * up``."""
        ...

    def causal_conv_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        """A causal convolution per channel, then SiLU.

        Shapes:
            x [B, T, C]; weight [kernel, C], the last row for the token itself.
        """
        ...

    def gated_delta_rule(
        self, qkv: Tensor, log_decay: Tensor, beta: Tensor, shape: GatedDeltaShape
    ) -> Tensor:
        """The gated delta rule from a zero state, with queries and keys scaled to unit length.

        Shapes:
            qkv [B, T, conv_channels]; log_decay and beta [B, T, HV]. Returns [B, T, HV, V].
        """
        ...

    def weighted_cross_entropy(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The sum over tokens of weight times negative log-likelihood.

        Shapes:
            logits [N, V]; targets [N] int64; weights [N]. Returns a scalar.

        Effects:
            The contents of ``logits`` are undefined afterwards.
        """
        ...
