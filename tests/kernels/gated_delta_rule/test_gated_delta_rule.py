"""The op against its reference: outputs, new states, and what must not change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvreg_kernels.gated_delta_rule import bind_gated_delta_rule, gated_delta_rule
from kvreg_kernels.gated_delta_rule.cases import (
    DECAYS,
    FP32_ROUNDING,
    FP64_ROUNDING,
    Inputs,
    Shape,
    make_inputs,
)
from kvreg_kernels.gated_delta_rule.chunked import ChunkedForm
from kvreg_kernels.gated_delta_rule.recurrent import RecurrentForm
from kvreg_kernels.gated_delta_rule.reference import reference_gated_delta_rule
from kvreg_kernels.testing import Tolerance, assert_close, nan_filled

Form = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

SHAPES = [
    Shape(batch=1, tokens=1, heads=1, value_heads=1, k_size=1, v_size=1),
    Shape(batch=2, tokens=1, heads=2, value_heads=4, k_size=32, v_size=32),
    Shape(batch=3, tokens=2, heads=1, value_heads=3, k_size=5, v_size=7),
    Shape(batch=1, tokens=3, heads=3, value_heads=3, k_size=8, v_size=4),
    Shape(batch=1, tokens=63, heads=2, value_heads=4, k_size=32, v_size=32),
    Shape(batch=1, tokens=64, heads=2, value_heads=2, k_size=16, v_size=32),
    Shape(batch=2, tokens=65, heads=2, value_heads=6, k_size=7, v_size=3),
    Shape(batch=1, tokens=127, heads=1, value_heads=2, k_size=4, v_size=9),
    Shape(batch=1, tokens=128, heads=1, value_heads=1, k_size=32, v_size=16),
    Shape(batch=1, tokens=129, heads=2, value_heads=4, k_size=32, v_size=32),
    Shape(batch=2, tokens=333, heads=1, value_heads=2, k_size=11, v_size=13),
]
ONE_TOKEN = [shape for shape in SHAPES if shape.tokens == 1]
TOLERANCES = {torch.float64: FP64_ROUNDING, torch.float32: FP32_ROUNDING}


def chunked(qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    return ChunkedForm(qk, v, log_decay, beta)(state)


def recurrent(qk: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    return RecurrentForm(qk, v, log_decay, beta)(state)


def check(form: Form, inputs: Inputs, tolerance: Tolerance) -> None:
    expected, expected_state = reference_gated_delta_rule(*inputs.as_tuple())
    out = form(*inputs.as_tuple())
    assert_close(out, expected, tolerance, "output")
    assert_close(inputs.state, expected_state, tolerance, "new state")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_the_reference(shape: Shape, decay: str, dtype: torch.dtype) -> None:
    check(gated_delta_rule, make_inputs(shape, decay=decay).to(dtype), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("shape", ONE_TOKEN, ids=str)
@pytest.mark.parametrize("form", [chunked, recurrent])
def test_both_forms_take_one_token(
    form: Form, shape: Shape, decay: str, dtype: torch.dtype
) -> None:
    check(form, make_inputs(shape, decay=decay).to(dtype), TOLERANCES[dtype])


@pytest.mark.parametrize("decay", DECAYS)
def test_token_by_token_equals_the_chunked_form(decay: str) -> None:
    whole = make_inputs(Shape(2, 150, 2, 4, 8, 6), decay=decay)
    steps = whole.to(torch.float64)
    out = chunked(*whole.as_tuple())
    walked = [recurrent(*steps.tokens(t, t + 1).as_tuple()) for t in range(150)]
    assert_close(torch.cat(walked, dim=1), out, FP64_ROUNDING, "output")
    assert_close(steps.state, whole.state, FP64_ROUNDING, "new state")


@pytest.mark.parametrize("split", [1, 2, 63, 64, 65, 100, 149])
def test_two_calls_equal_one(split: int) -> None:
    whole = make_inputs(Shape(1, 150, 2, 4, 8, 6))
    parts = whole.to(torch.float64)
    out = gated_delta_rule(*whole.as_tuple())
    first = gated_delta_rule(*parts.tokens(0, split).as_tuple())
    second = gated_delta_rule(*parts.tokens(split, 150).as_tuple())
    assert_close(torch.cat((first, second), dim=1), out, FP64_ROUNDING, "output")
    assert_close(parts.state, whole.state, FP64_ROUNDING, "new state")


@pytest.mark.parametrize("tokens", [1, 70])
def test_only_the_states_of_the_batch_are_written(tokens: int) -> None:
    inputs = make_inputs(Shape(2, tokens, 1, 2, 8, 8))
    slots = nan_filled(5, 2, 8, 8, dtype=torch.float64)
    slots[1:3] = inputs.state
    expected, expected_state = reference_gated_delta_rule(*inputs.as_tuple())
    out = gated_delta_rule(*inputs.as_tuple()[:4], slots[1:3])
    assert_close(out, expected, FP64_ROUNDING, "output")
    assert_close(slots[1:3], expected_state, FP64_ROUNDING, "new state")
    assert slots[[0, 3, 4]].isnan().all()


@pytest.mark.parametrize("tokens", [1, 70])
def test_sequences_of_a_batch_do_not_see_each_other(tokens: int) -> None:
    together = make_inputs(Shape(3, tokens, 1, 2, 8, 8))
    alone = Inputs(*(x[1:2].clone() for x in together.as_tuple()))
    out = gated_delta_rule(*together.as_tuple())
    assert_close(gated_delta_rule(*alone.as_tuple()), out[1:2], FP64_ROUNDING, "output")
    assert_close(alone.state, together.state[1:2], FP64_ROUNDING, "new state")


@pytest.mark.parametrize("tokens", [1, 70])
def test_nothing_but_the_state_is_mutated(tokens: int) -> None:
    inputs = make_inputs(Shape(1, tokens, 1, 2, 8, 8))
    before = inputs.to(torch.float64)
    gated_delta_rule(*inputs.as_tuple())
    for old, new in zip(before.as_tuple()[:4], inputs.as_tuple()[:4], strict=True):
        assert torch.equal(old, new)


def test_strided_inputs_are_read_right() -> None:
    inputs = make_inputs(Shape(2, 70, 2, 4, 8, 6))
    qk, v = inputs.qk.flatten(2), inputs.v.flatten(2)
    packed = torch.cat((qk, v, nan_filled(2, 70, 3, dtype=torch.float64)), dim=-1)
    views = Inputs(
        packed[..., :32].view(2, 70, 2, 2, 8), packed[..., 32:56].view(2, 70, 4, 6),
        inputs.log_decay, inputs.beta, inputs.state.clone(),
    )  # fmt: skip
    check(gated_delta_rule, views, FP64_ROUNDING)


def test_a_wiping_token_does_not_blur_the_weak_decays_behind_it() -> None:
    inputs = make_inputs(Shape(1, 64, 1, 2, 16, 16), decay="weak").to(torch.float32)
    inputs.log_decay[:, 3] = -5000.0
    check(gated_delta_rule, inputs, FP32_ROUNDING)


@pytest.mark.parametrize("decay", ["none", "weak"])
def test_errors_do_not_grow_over_a_long_sequence(decay: str) -> None:
    inputs = make_inputs(Shape(1, 4096, 1, 1, 16, 16), decay=decay).to(torch.float32)
    check(gated_delta_rule, inputs, FP32_ROUNDING)


@pytest.mark.parametrize("tokens", [1, 70])
def test_a_bound_rule_reads_what_its_buffers_hold_at_each_call(tokens: int) -> None:
    shape = Shape(2, tokens, 2, 4, 8, 6)
    first, second = make_inputs(shape, seed=1), make_inputs(shape, seed=2)
    buffers = [nan_filled(*x.shape, dtype=x.dtype) for x in first.as_tuple()[:4]]
    rule = bind_gated_delta_rule(*buffers)
    for inputs in (first, second, first):
        for buffer, values in zip(buffers, inputs.as_tuple()[:4], strict=True):
            buffer.copy_(values)
        state = inputs.state.clone()
        expected, expected_state = reference_gated_delta_rule(*inputs.as_tuple())
        assert_close(rule(state), expected, FP64_ROUNDING, "output")
        assert_close(state, expected_state, FP64_ROUNDING, "new state")


@pytest.mark.parametrize("tokens", [1, 2])
def test_shapes_that_do_not_fit_are_refused(tokens: int) -> None:
    inputs = make_inputs(Shape(1, tokens, 1, 2, 8, 6))
    with pytest.raises(ValueError, match="state is"):
        gated_delta_rule(*inputs.as_tuple()[:4], inputs.state.mT.contiguous())
    with pytest.raises(ValueError, match="do not fit"):
        gated_delta_rule(inputs.qk, inputs.v, inputs.log_decay[..., :1], inputs.beta, inputs.state)
