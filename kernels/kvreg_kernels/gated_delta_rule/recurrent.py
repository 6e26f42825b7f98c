"""The rule for one token of each sequence: five small operations on the state, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from kvreg_kernels.unit_length import length

EPSILON = 1e-6
"""Added to the squared length of queries and keys, as in the published kernels."""


def recurrent_gated_delta_rule(
    qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    """As ``gated_delta_rule`` with T = 1."""
    batch, _, _, heads, k_size = qk.shape
    value_heads, v_size = v.shape[2:]
    rows = batch * value_heads
    qk = qk.to(state.dtype).view(batch, 2, heads, 1, k_size)
    # The division also repeats each key head for the value heads that share it.
    unit = qk / length(qk, EPSILON).expand(-1, -1, -1, value_heads // heads, -1)
    q, k = unit[:, 0].reshape(rows, 1, k_size), unit[:, 1].reshape(rows, 1, k_size)

    state.mul_(log_decay.to(state.dtype).exp().view(batch, value_heads, 1, 1))
    memory = state.view(rows, k_size, v_size)
    values = v.to(state.dtype).reshape(rows, 1, v_size)
    correction = torch.baddbmm(values, k, memory, alpha=-1)
    correction.mul_(beta.to(state.dtype).reshape(rows, 1, 1))
    memory.baddbmm_(k.transpose(1, 2), correction)
    # beta = 0: the first argument gives only the shape.
    out = torch.baddbmm(correction, q, memory, beta=0, alpha=k_size**-0.5)
    return out.view(batch, 1, value_heads, v_size).to(v.dtype)
