"""The comparison of an op with its reference."""

from __future__ import annotations

import pytest
import torch

from kvreg_kernels.testing import Tolerance, assert_close, deviation, nan_filled

LOOSE = Tolerance("test.loose", relative_rms=0.5, worst_element=0.5)


def test_a_nan_never_passes() -> None:
    actual = torch.tensor([1.0, torch.nan])
    with pytest.raises(AssertionError, match=r"test\.loose"):
        assert_close(actual, torch.ones(2), LOOSE, "a value")


def test_a_fresh_buffer_does_not_pass_for_a_result() -> None:
    assert not deviation(nan_filled(3, dtype=torch.float32), torch.ones(3)).is_within(LOOSE)


def test_one_bad_element_among_many_fails() -> None:
    actual = torch.ones(10_000)
    actual[77] = 3.0
    found = deviation(actual, torch.ones(10_000))
    assert found.relative_rms < 0.5
    assert not found.is_within(LOOSE)


def test_errors_are_relative_to_the_rms_of_the_expected() -> None:
    small, large = (deviation(1.1 * x, x) for x in (torch.full((4,), 1e-6), torch.full((4,), 1e6)))
    assert small.relative_rms == pytest.approx(large.relative_rms)


def test_another_shape_fails_even_if_it_broadcasts() -> None:
    with pytest.raises(AssertionError, match="shape"):
        assert_close(torch.ones(1), torch.ones(4), LOOSE, "a value")


def test_an_expectation_that_is_not_finite_is_refused() -> None:
    with pytest.raises(AssertionError, match="not finite"):
        deviation(torch.ones(1), torch.tensor([torch.inf]))
