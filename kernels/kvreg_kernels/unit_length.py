"""Division of vectors by their length: the heart of every norm in the model.

An RMS norm of size D with ``eps`` is sqrt(D) times a unit vector with epsilon D * eps, so one
operator serves norms, queries and keys. Owns no weights.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def length(x: Tensor, epsilon: float) -> Tensor:
    """Returns sqrt(sum of squares + epsilon) over the last dimension, kept with size 1."""
    # Two calls instead of five: a norm has a kernel of its own, and a hypotenuse adds epsilon.
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.hypot(norm, _root(epsilon, norm.dtype, norm.device))


def unit_length(x: Tensor, epsilon: float) -> Tensor:
    """Returns x / sqrt(sum of squares + epsilon) over the last dimension."""
    return x / length(x, epsilon)


@cache
def _root(epsilon: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A constant: building it costs more than the division that needs it."""
    return torch.tensor(epsilon**0.5, dtype=dtype, device=device)
