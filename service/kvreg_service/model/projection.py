"""Matrices as the layers multiply by them: transposed, fused side by side, norms folded in.

Owns the product that every layer is made of. The norm before a matrix is a division by the length
of the vector; its weights and the square root of its size are constants and go into the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Projection:
    """One matrix [inputs, outputs], with a bias if the model has one.

    Stored transposed: for few tokens, a product that reads whole rows of the matrix is faster.
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
        """Copies matrices [outputs, inputs] that read the same input side by side.

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

    def __call__(self, x: Tensor) -> Tensor:
        """Multiplies [N, inputs], cast to the type of the matrix; returns [N, outputs]."""
        x = x.to(self.matrix.dtype)
        if self.bias is None:
            return torch.mm(x, self.matrix)
        return torch.addmm(self.bias, x, self.matrix)
