"""Weight matrices as the layers use them: transposed, fused side by side, with folded norms.

Owns the matrix product of all layers. The norm before a matrix divides by the length of the vector;
its weights and the square root of its size are constants, which are folded into the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvreg_kernels.unit_length import UnitLength
from kvreg_service.model.precision import accumulation_dtype


def rms_direction(size: int, eps: float, dtype: torch.dtype, device: torch.device) -> UnitLength:
    """Returns the rest of an RMS norm of ``size`` whose constants are folded into a matrix.

    ``dtype`` is that of the matrices; the norm itself computes in the dtype of the residual stream.
    """
    return UnitLength(size * eps, accumulation_dtype(dtype), device)


class Projection:
    """One matrix [inputs, outputs], with a bias if the model has one.

    It is stored transposed: for few tokens, a product that reads contiguous rows is faster.
    """

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
        self.matrix = matrix
        self.bias = bias

    @classmethod
    def fused(
        cls,
        weights: Sequence[Tensor],
        device: torch.device,
        *,
        norm: Tensor | None = None,
        biases: Sequence[Tensor] = (),
    ) -> Projection:
        """Fuses matrices [outputs, inputs] with the same input side by side.

        ``norm`` is the effective weight [inputs] of the RMS norm before them.
        """
        num_inputs = weights[0].shape[1]
        sizes = [weight.shape[0] for weight in weights]
        matrix = torch.empty((num_inputs, sum(sizes)), dtype=weights[0].dtype, device=device)
        for part, weight in zip(torch.split_with_sizes(matrix, sizes, dim=1), weights, strict=True):
            if norm is None:
                part.copy_(weight.t())
            else:
                part.copy_(weight.t().to(norm.dtype) * (norm * num_inputs**0.5).unsqueeze(1))
        return cls(matrix, torch.cat(list(biases)).to(device) if biases else None)

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Multiplies [N, inputs], in the dtype of the matrix; returns [N, outputs]."""
        if self.bias is None:
            return torch.mm(x, self.matrix, out=out)
        return torch.addmm(self.bias, x, self.matrix, out=out)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Adds the product of x to ``residual`` [N, outputs], which may have a wider dtype."""
        if residual.dtype != self.matrix.dtype:
            residual.add_(self(x))
            return
        residual.addmm_(x, self.matrix)
        if self.bias is not None:
            residual.add_(self.bias)
