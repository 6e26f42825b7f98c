"""The gated delta rule: a linear attention whose state decays and is corrected by each token.

Owns the operator's contract and the choice of its form. It owns no state: the caller passes the
state of each sequence, and the operator advances it in place.
"""

from __future__ import annotations

from torch import Tensor

from kvreg_kernels.gated_delta_rule.chunked import chunked_gated_delta_rule
from kvreg_kernels.gated_delta_rule.recurrent import recurrent_gated_delta_rule

__all__ = ["gated_delta_rule"]


def gated_delta_rule(
    qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    """Runs T tokens of B sequences through the rule and returns what the queries read.

    Per token and value head, with the query and key scaled to unit length (plus epsilon)::

        S <- exp(log_decay) * S
        S <- S + k (beta * (v - k^T S))^T
        o  = S^T q / sqrt(K)

    Shapes:
        qk [B, T, 2, H, K] queries and keys; v [B, T, HV, V]; log_decay, beta [B, T, HV];
        state [B, HV, K, V], contiguous, fp32 (fp64 if the rest is). HV is a multiple of H: value
        head h reads key head h // (HV / H). Returns [B, T, HV, V] in the type of v.

    Effects:
        ``state`` holds the state after the last token. Nothing else is mutated.

    Raises:
        ValueError: Shapes that do not fit each other.

    Source:
        Yang et al., "Gated Delta Networks", https://arxiv.org/abs/2412.06464, equation 10.
    """
    batch, tokens, _, heads, k_size = qk.shape
    value_heads, v_size = v.shape[2:]
    if (
        state.shape != (batch, value_heads, k_size, v_size)
        or log_decay.shape != (batch, tokens, value_heads)
        or beta.shape != log_decay.shape
        or value_heads % heads
    ):
        raise ValueError(
            f"qk {tuple(qk.shape)}, v {tuple(v.shape)}, log_decay {tuple(log_decay.shape)}, beta "
            f"{tuple(beta.shape)} and state {tuple(state.shape)} do not fit each other"
        )
    run = recurrent_gated_delta_rule if tokens == 1 else chunked_gated_delta_rule
    return run(qk, v, log_decay, beta, state)
