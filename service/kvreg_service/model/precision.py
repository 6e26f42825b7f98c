"""The accumulation dtype of the model."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of recurrent states, residual stream and norms for matrices of ``dtype``.

    It is fp32, also for fp16 and bf16 matrices, and fp64 for fp64 matrices.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32
