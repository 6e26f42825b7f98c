"""The chunked form for many tokens: matrix products inside chunks of 64, a recurrence between them.

Inside a chunk, the corrections of all tokens depend on each other through a unit lower triangular
matrix; one triangular solve gives them as ``u - w S`` for the state S at the start of the chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_kernels.gated_delta_rule.recurrent import EPSILON
from kvreg_kernels.unit_length import UnitLength

CHUNK_TOKENS = 64
"""As in transformers. Longer chunks cost more inside a chunk, shorter ones more steps."""


class ChunkedForm:
    """The rule for any T >= 1, bound to its input buffers.

    Source:
        Yang et al., "Gated Delta Networks", https://arxiv.org/abs/2412.06464, section 3.3.
    """

    def __init__(self, qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> None:
        self._qk = qk
        self._v = v
        self._gates = (log_decay, beta)
        self._unit_length = UnitLength(EPSILON, qk.dtype, qk.device)

    def __call__(self, state: Tensor) -> Tensor:
        """See ``gated_delta_rule``."""
        batch, tokens, _, heads, k_size = self._qk.shape
        value_heads, v_size = self._v.shape[2:]
        group = value_heads // heads
        rows = batch * value_heads
        chunk = min(CHUNK_TOKENS, tokens)
        num_chunks = -(-tokens // chunk)
        # Padded tokens have k = 0, beta = 0 and no decay: they do not change the state.
        padding = num_chunks * chunk - tokens
        unit = F.pad(self._unit_length(self._qk), (0, 0, 0, 0, 0, 0, 0, padding))
        v = F.pad(self._v, (0, 0, 0, 0, 0, padding))
        gates = F.pad(torch.stack(self._gates), (0, 0, 0, padding))

        # n chunks, B, H key heads, G value heads that share a key head, C tokens.
        unit = unit.view(batch, num_chunks, chunk, 2, heads, 1, k_size)
        q, k = unit.permute(3, 1, 0, 4, 5, 2, 6)  # [n, B, H, 1, C, K]
        v = v.view(batch, num_chunks, chunk, heads, group, v_size).permute(1, 0, 3, 4, 2, 5)
        gates = gates.view(2, batch, num_chunks, chunk, heads, group)
        log_decay, beta = gates.permute(0, 2, 1, 4, 5, 3)  # [n, B, H, G, C]

        # In fp64: differences of long sums cancel, and a strong decay would round weak ones away.
        since_start = log_decay.double().cumsum(-1)
        future = v.new_full((chunk, chunk), -torch.inf).triu_(1)
        between = (since_start.unsqueeze(-1) - since_start.unsqueeze(-2)).to(v.dtype)
        between = (between + future).exp_()  # [n, B, H, G, C, C], zero for later tokens
        from_start = since_start.to(v.dtype).exp().unsqueeze(-1)
        to_end = (since_start[..., -1:] - since_start).to(v.dtype).exp().unsqueeze(-1)

        beta = beta.unsqueeze(-1)
        coupling = torch.matmul(k, k.mT) * beta * between
        right_side = torch.cat((v * beta, k * beta * from_start), dim=-1)
        solved = torch.linalg.solve_triangular(
            coupling, right_side, upper=False, unitriangular=True
        )

        q = q * k_size**-0.5
        solved = solved.reshape(num_chunks, rows, chunk, v_size + k_size)
        u, w = solved[..., :v_size], solved[..., v_size:]
        within = (torch.matmul(q, k.mT) * between).reshape(num_chunks, rows, chunk, chunk)
        queries = (q * from_start).reshape(num_chunks, rows, chunk, k_size)
        keys = (k * to_end).reshape(num_chunks, rows, chunk, k_size).mT
        chunk_decay = from_start[..., -1, :].reshape(num_chunks, rows, 1, 1)

        memory = state.view(rows, k_size, v_size)
        out = v.new_empty(num_chunks, rows, chunk, v_size)
        for i in range(num_chunks):
            correction = torch.baddbmm(u[i], w[i], memory, alpha=-1)
            torch.bmm(within[i], correction, out=out[i])
            out[i].baddbmm_(queries[i], memory)
            memory.mul_(chunk_decay[i]).baddbmm_(keys[i], correction)
        out = out.view(num_chunks, batch, value_heads, chunk, v_size).permute(1, 0, 3, 2, 4)
        return out.reshape(batch, num_chunks * chunk, value_heads, v_size)[:, :tokens]
