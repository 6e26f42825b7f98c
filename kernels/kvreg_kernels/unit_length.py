"""Division of vectors by their length, the core of every norm in the model.

An RMS norm of size D with ``eps`` is sqrt(D) times a unit vector with epsilon D * eps, so one op
serves norms, queries and keys. Owns no weights.
"""

from __future__ import annotations

import torch
from torch import Tensor


class UnitLength:
    """Divides vectors by sqrt(sum of squares + epsilon), over the last dimension."""

    def __init__(self, epsilon: float, dtype: torch.dtype, device: torch.device) -> None:
        """``dtype`` is that of the vectors."""
        self._root = torch.tensor(epsilon**0.5, dtype=dtype, device=device)

    def length(self, x: Tensor) -> Tensor:
        """Returns sqrt(sum of squares + epsilon); the last dimension is kept with size 1."""
        # Two kernels instead of five: a fused norm, and a hypotenuse that adds epsilon.
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return norm.hypot_(self._root)

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Returns the unit vectors.

        Effects:
            Writes into ``out``, which may be narrower than x; without it the result is fresh.
        """
        return torch.div(x, self.length(x), out=out)
