"""Division of vectors by their length."""

from __future__ import annotations

import pytest
import torch

from kvreg_kernels.testing import Tolerance, assert_close
from kvreg_kernels.unit_length import UnitLength

ROUNDING = {
    torch.float64: Tolerance("unit_length.fp64", relative_rms=1e-15, worst_element=1e-14),
    torch.float32: Tolerance("unit_length.fp32", relative_rms=2e-7, worst_element=2e-6),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 128)])
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_it_follows_its_formula(
    dtype: torch.dtype, shape: tuple[int, ...], magnitude: float
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype) * magnitude
    exact = x.double()
    expected = exact / (exact.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    assert_close(UnitLength(1e-6, dtype, x.device)(x), expected, ROUNDING[dtype], "unit vector")


def test_a_zero_vector_stays_zero() -> None:
    unit_length = UnitLength(1e-6, torch.float32, torch.device("cpu"))
    assert torch.equal(unit_length(torch.zeros(2, 8)), torch.zeros(2, 8))


def test_an_rms_norm_is_a_scaled_unit_vector() -> None:
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.nn.functional.rms_norm(x, (24,), eps=1e-3)
    actual = UnitLength(24 * 1e-3, x.dtype, x.device)(x) * 24**0.5
    assert_close(actual, expected, ROUNDING[torch.float64], "norm")
