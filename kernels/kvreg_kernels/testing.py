"""Comparison of an op with its reference: relative RMS and a limit on the worst element.

Ships with the package, so that tests and benchmarks use the same rule. The tolerances of an op are
in its ``cases.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """Limits of an error. Both are relative to the RMS of the expected tensor."""

    name: str
    relative_rms: float
    worst_element: float


@dataclass(frozen=True)
class Deviation:
    """The error of a tensor, relative to the RMS of the expected one."""

    relative_rms: float
    worst_element: float

    def is_within(self, tolerance: Tolerance) -> bool:
        """Return whether both limits hold. NaN compares false, so any NaN exceeds them."""
        return (
            self.relative_rms <= tolerance.relative_rms
            and self.worst_element <= tolerance.worst_element
        )


def deviation(actual: Tensor, expected: Tensor) -> Deviation:
    """Return the error, computed in fp64. Equal zero tensors have no error.

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
    """Fail with both numbers and the name of the tolerance if it is exceeded.

    Raises:
        AssertionError: See ``deviation``; or the tolerance is exceeded, or there is a NaN.
    """
    found = deviation(actual, expected)
    assert found.is_within(tolerance), f"{what}: {found} exceeds {tolerance}"


def nan_filled(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a new buffer of NaN, in which an unwritten element cannot pass for a result."""
    return torch.full(shape, torch.nan, dtype=dtype)
