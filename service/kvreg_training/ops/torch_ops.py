"""The ops of training in plain torch: no compiler needed. ``fused_ops`` holds the faster ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_training.shape import GatedDeltaShape

_CHUNK_TOKENS = 64


class TorchOps:
    """The ops in plain torch, differentiated by autograd."""

    name = "torch"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """See ``Ops``."""
        return F.linear(x, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See ``Ops``."""
        return F.rms_norm(x, (x.shape[-1],), weight, epsilon)

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See ``Ops``."""
        return F.rms_norm(x, (x.shape[-1],), weight, epsilon) * F.silu(gate)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """See ``Ops``."""
        return F.silu(gate) * up

    def causal_conv_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        """See ``Ops``."""
        kernel_size = weight.shape[0]
        num_tokens = x.shape[1]
        padded = F.pad(x, (0, 0, kernel_size - 1, 0))
        taps = (padded[:, tap : tap + num_tokens] * weight[tap] for tap in range(kernel_size))
        return F.silu(torch.stack(tuple(taps)).sum(0))

    def gated_delta_rule(
        self, qkv: Tensor, log_decay: Tensor, beta: Tensor, shape: GatedDeltaShape
    ) -> Tensor:
        """See ``Ops``. Matrix products inside chunks, a recurrence between them."""
        batch, num_tokens, _ = qkv.shape
        q, k, v = torch.split(qkv, [shape.key_size, shape.key_size, shape.value_size], dim=-1)
        keys_per_value = shape.num_value_heads // shape.num_key_heads
        q, k = (
            _unit_length(x.reshape(batch, num_tokens, shape.num_key_heads, shape.key_head_size))
            .repeat_interleave(keys_per_value, dim=2)
            .contiguous()
            for x in (q, k)
        )
        q = q * shape.key_head_size**-0.5
        v = v.reshape(batch, num_tokens, shape.num_value_heads, shape.value_head_size)
        q, k, v, log_decay, beta = (_chunked(x) for x in (q, k, v, log_decay, beta))

        # From here on all tensors are [B, chunks, HV, C, ...].
        since_start = log_decay.cumsum(-1)
        is_later = torch.ones(_CHUNK_TOKENS, _CHUNK_TOKENS, dtype=torch.bool).triu(1)
        between = since_start.unsqueeze(-1) - since_start.unsqueeze(-2)
        between = between.masked_fill(is_later, -torch.inf).exp()
        from_start = since_start.exp().unsqueeze(-1)
        to_end = (since_start[..., -1:] - since_start).exp().unsqueeze(-1)

        weighted_keys = k * beta.unsqueeze(-1)
        coupling = (weighted_keys @ k.mT) * between
        right_side = torch.cat((v * beta.unsqueeze(-1), weighted_keys * from_start), dim=-1)
        solved = torch.linalg.solve_triangular(
            coupling, right_side, upper=False, unitriangular=True
        )
        u, w = solved.split((shape.value_head_size, shape.key_head_size), dim=-1)
        within = (q @ k.mT) * between
        queries = q * from_start
        keys = (k * to_end).mT
        chunk_decay = from_start[..., -1:, :]

        state = qkv.new_zeros(
            batch, shape.num_value_heads, shape.key_head_size, shape.value_head_size
        )
        outputs = []
        for chunk in range(q.shape[1]):
            corrections = u[:, chunk] - w[:, chunk] @ state
            outputs.append(queries[:, chunk] @ state + within[:, chunk] @ corrections)
            state = state * chunk_decay[:, chunk] + keys[:, chunk] @ corrections
        out = torch.stack(outputs, dim=1).transpose(2, 3)  # [B, chunks, C, HV, V]
        return out.flatten(1, 2)[:, :num_tokens]

    def weighted_cross_entropy(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """See ``Ops``."""
        return (F.cross_entropy(logits, targets, reduction="none") * weights).sum()


def _unit_length(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _chunked(x: Tensor) -> Tensor:
    """[B, T, HV, ...] to [B, chunks, HV, C, ...], with zeros after the last token."""
    padding = -x.shape[1] % _CHUNK_TOKENS
    x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, padding))
    chunks = x.reshape(x.shape[0], -1, _CHUNK_TOKENS, *x.shape[2:])
    return chunks.transpose(2, 3)
