"""Division of vectors by their length: the heart of every norm in the model.

An RMS norm of size D with ``eps`` is sqrt(D) times a unit vector with epsilon D * eps, so one
operator serves norms, queries and keys. Owns no weights.
"""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_length(x: Tensor, epsilon: float) -> Tensor:
    """Returns 1 / sqrt(sum of squares + epsilon) over the last dimension, kept with size 1."""
    # A norm has a kernel of its own; squaring its result is cheaper than squaring all of x.
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().add_(epsilon).rsqrt_()


def unit_length(x: Tensor, epsilon: float) -> Tensor:
    """Returns x / sqrt(sum of squares + epsilon) over the last dimension."""
    return x * inverse_length(x, epsilon)
