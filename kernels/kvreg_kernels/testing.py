"""How an operator is compared with its reference: relative RMS and a cap on the worst element.

Ships with the package so that tests and benchmarks judge by one rule. Owns no tolerances: each
operator names its own in its ``cases.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """What an error may be. Both limits are relative to the RMS of the expected tensor."""

    name: str
    relative_rms: float
    worst_element: float


@dataclass(frozen=True)
class Deviation:
    """How far a tensor is from what was expected, relative to the RMS of the expected one."""

    relative_rms: float
    worst_element: float

    def is_within(self, tolerance: Tolerance) -> bool:
        """NaN compares false with everything, so a NaN anywhere is never within."""
        return (
            self.relative_rms <= tolerance.relative_rms
            and self.worst_element <= tolerance.worst_element
        )


def deviation(actual: Tensor, expected: Tensor) -> Deviation:
    """Measures in fp64. Equal zero tensors deviate by zero.

    Raises:
        AssertionError: The shapes differ or the expected tensor is not finite.
    """
    assert actual.shape == expected.shape, f"shape {actual.shape} instead of {expected.shape}"
    wanted = expected.double()
    assert bool(wanted.isfinite().all()), "the expected tensor is not finite"
    if wanted.numel() == 0:
        return Deviation(0.0, 0.0)
    error = actual.to(wanted.device).double() - wanted
    scale = max(float(wanted.square().mean().sqrt()), torch.finfo(torch.float64).tiny)
    return Deviation(float(error.square().mean().sqrt()) / scale, float(error.abs().max()) / scale)


def assert_close(actual: Tensor, expected: Tensor, tolerance: Tolerance, what: str) -> None:
    """Fails with both numbers and the tolerance's name when ``actual`` is too far off.

    Raises:
        AssertionError: See ``deviation``; or the tolerance is exceeded, or there is a NaN.
    """
    found = deviation(actual, expected)
    assert found.is_within(tolerance), f"{what}: {found} exceeds {tolerance}"


def nan_filled(*shape: int, dtype: torch.dtype) -> Tensor:
    """A fresh buffer in which an element that nobody wrote cannot pass for a result."""
    return torch.full(shape, torch.nan, dtype=dtype)
