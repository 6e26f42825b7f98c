"""The gated delta rule: a linear attention whose state decays and is corrected by each token.

Owns the contract of the op and the choice of its implementation. It owns no state: the caller
passes the state of each sequence, and the op advances it in place.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kvreg_kernels.gated_delta_rule.chunked import ChunkedForm
from kvreg_kernels.gated_delta_rule.recurrent import RecurrentForm

__all__ = ["bind_gated_delta_rule", "gated_delta_rule"]


def gated_delta_rule(
    qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    """Runs T tokens of B sequences through the rule and returns the outputs of the queries.

    Per token and value head, with the query and key scaled to unit length (plus epsilon)::

        S <- exp(log_decay) * S
        S <- S + k (beta * (v - k^T S))^T
        o  = S^T q / sqrt(K)

    Shapes:
        qk [B, T, 2, H, K] queries and keys; v [B, T, HV, V]; log_decay, beta [B, T, HV];
        state [B, HV, K, V], contiguous. All fp32 or all fp64, T >= 1. HV is a multiple of H: value
        head h reads key head h // (HV / H). Returns [B, T, HV, V].

    Effects:
        ``state`` holds the state after the last token. Nothing else is mutated.

    Raises:
        ValueError: The shapes do not match.

    Source:
        Yang et al., "Gated Delta Networks", https://arxiv.org/abs/2412.06464, equation 10.
    """
    expected = (qk.shape[0], *v.shape[2:3], qk.shape[-1], v.shape[-1])
    if state.shape != expected:
        raise ValueError(f"state is {tuple(state.shape)}, expected {expected}")
    return bind_gated_delta_rule(qk, v, log_decay, beta)(state)


def bind_gated_delta_rule(
    qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> Callable[[Tensor], Tensor]:
    """Returns ``gated_delta_rule`` bound to input buffers, to be called with a state.

    Each call reads the current contents of the buffers. For one token, the checks, views and
    buffers cost as much as the rule; a decode loop makes them once.

    Effects:
        The result of a call may be overwritten by the next call.

    Raises:
        ValueError: The shapes do not match.
    """
    batch, tokens, _, heads, _ = qk.shape
    if (
        v.shape[:2] != (batch, tokens)
        or log_decay.shape != v.shape[:3]
        or beta.shape != v.shape[:3]
        or v.shape[2] % heads
    ):
        raise ValueError(
            f"qk {tuple(qk.shape)}, v {tuple(v.shape)}, log_decay {tuple(log_decay.shape)} and "
            f"beta {tuple(beta.shape)} do not fit each other"
        )
    form = RecurrentForm if tokens == 1 else ChunkedForm
    return form(qk, v, log_decay, beta)
