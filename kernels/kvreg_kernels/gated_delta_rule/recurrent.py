"""The recurrent form for one token of each sequence, in place on the state."""

from __future__ import annotations

import torch
from torch import Tensor

from kvreg_kernels.unit_length import UnitLength

EPSILON = 1e-6
"""Added to the squared length of queries and keys, as in the published kernels."""


class RecurrentForm:
    """The rule with T = 1, bound to its input buffers. Owns buffers for all intermediates."""

    def __init__(self, qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> None:
        batch, _, _, heads, k_size = qk.shape
        value_heads, v_size = v.shape[2:]
        group = value_heads // heads
        rows = batch * value_heads

        self._qk = qk.view(batch, 2, heads, 1, k_size)
        self._shared_qk = self._qk.expand(-1, -1, -1, group, -1)
        self._values = v.view(batch, value_heads, 1, v_size)
        self._log_decay = log_decay.view(batch, value_heads, 1, 1)
        self._beta = beta.view(batch, value_heads, 1, 1)
        self._scale = k_size**-0.5
        self._unit_length = UnitLength(EPSILON, qk.dtype, qk.device)

        # Each key head is repeated for the value heads that share it.
        unit = v.new_empty(2, batch, heads, group, k_size)
        self._unit = unit.transpose(0, 1)
        self._queries, self._keys = unit.view(2, rows, 1, k_size).unbind()
        self._key_columns = self._keys.mT
        self._decay = torch.empty_like(self._log_decay)
        self._correction = v.new_empty(batch, value_heads, 1, v_size)
        self._correction_rows = self._correction.view(rows, 1, v_size)
        self._memory_shape = (rows, k_size, v_size)
        self._out_rows = v.new_empty(rows, 1, v_size)
        self._out = self._out_rows.view(batch, 1, value_heads, v_size)

    def __call__(self, state: Tensor) -> Tensor:
        """See ``gated_delta_rule``."""
        torch.div(self._shared_qk, self._unit_length.length(self._qk), out=self._unit)
        state.mul_(torch.exp(self._log_decay, out=self._decay))
        memory = state.view(self._memory_shape)
        self._correction.copy_(self._values)
        self._correction_rows.baddbmm_(self._keys, memory, alpha=-1)
        self._correction.mul_(self._beta)
        memory.baddbmm_(self._key_columns, self._correction_rows)
        # beta = 0: the previous content of the output is ignored.
        self._out_rows.baddbmm_(self._queries, memory, beta=0, alpha=self._scale)
        return self._out
