"""Which type sums are kept in. Owns that one rule."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of recurrent states, the residual stream and norms for matrices of ``dtype``.

    fp32, also for fp16 and bf16 matrices; fp64 only when everything is.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32
