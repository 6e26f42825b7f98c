"""Inputs and tolerances of the gated delta rule, for its tests and its benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvreg_kernels.testing import Tolerance

FP64_ROUNDING = Tolerance("gated_delta_rule.fp64_rounding", relative_rms=1e-14, worst_element=2e-12)
"""Two summation orders in fp64."""

FP32_ROUNDING = Tolerance("gated_delta_rule.fp32_rounding", relative_rms=5e-7, worst_element=1e-5)
"""fp32 against fp64: about 4 ULP on average, also after a long recurrence."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one call, named as in the contract of the op."""

    batch: int
    tokens: int
    heads: int
    value_heads: int
    k_size: int
    v_size: int


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call, in order."""

    qk: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor
    state: Tensor

    def to(self, dtype: torch.dtype) -> Inputs:
        """Return a copy with another dtype; all tensors are new, including the state."""
        qk, v, log_decay, beta, state = (x.to(dtype, copy=True) for x in self.as_tuple())
        return Inputs(qk, v, log_decay, beta, state)

    def as_tuple(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the arguments of a call."""
        return self.qk, self.v, self.log_decay, self.beta, self.state

    def tokens(self, start: int, stop: int) -> Inputs:
        """Return the inputs of tokens ``start`` to ``stop``, with the same state."""
        qk, v, log_decay, beta = (x[:, start:stop] for x in self.as_tuple()[:4])
        return Inputs(qk, v, log_decay, beta, self.state)


DECAYS = {"none": 0.0, "weak": 0.01, "usual": 1.0, "strong": 30.0}
"""Mean of -log_decay per token: from no decay to a state that each token erases."""


def make_inputs(shape: Shape, *, decay: str = "usual", seed: int = 0) -> Inputs:
    """Return random fp64 inputs with a non-zero state and exponentially distributed decays."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    per_head = (shape.batch, shape.tokens, shape.value_heads)
    uniform = torch.rand(per_head, generator=generator, dtype=torch.float64)
    return Inputs(
        qk=normal(shape.batch, shape.tokens, 2, shape.heads, shape.k_size),
        v=normal(*per_head, shape.v_size),
        log_decay=-DECAYS[decay] * -torch.log1p(-uniform),
        beta=normal(*per_head).sigmoid(),
        state=normal(shape.batch, shape.value_heads, shape.k_size, shape.v_size),
    )
