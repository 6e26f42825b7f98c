"""The rule written from its formula, token by token: the only oracle, never used to serve."""

from __future__ import annotations

import torch
from torch import Tensor


def reference_gated_delta_rule(
    qk: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Computes in ``dtype`` and returns the outputs and the new state; mutates nothing.

    Shapes:
        As in ``gated_delta_rule``.
    """
    qk, v, log_decay, beta, state = (x.to(dtype) for x in (qk, v, log_decay, beta, state))
    tokens, _, heads, k_size = qk.shape[1:]
    value_heads = v.shape[2]
    unit = qk / (qk.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    q, k = unit.repeat_interleave(value_heads // heads, dim=3).unbind(2)  # [B, T, HV, K]
    outputs = []
    for t in range(tokens):
        state = log_decay[:, t, :, None, None].exp() * state
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        correction = beta[:, t, :, None] * (v[:, t] - known)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], correction)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) / k_size**0.5)
    return torch.stack(outputs, dim=1), state
