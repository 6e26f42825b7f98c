"""Exact memory of the 27B shape on two GPUs, computed from its config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg_service.core.memory.budget import (
    GIB,
    KVDtype,
    ModelShape,
    WeightFormat,
    kv_bytes_per_token,
    state_slot_bytes,
)
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.engine.reservation import (
    GPU_ACTIVATION_BYTES,
    GpuProfile,
    model_shape,
    plan_gpu,
)
from kvreg_service.model.config import ModelConfig

_CONFIG = Path(__file__).parent.parent / "data" / "qwen3_5-27b" / "config.json"
_SLOT_BYTES = 76_972_032
_MIB = 1 << 20


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    return model_shape(ModelConfig.from_path(_CONFIG))


def _state_bytes(shape: ModelShape, entries: int, *, keep_current: bool = True) -> int:
    profile = GpuProfile(
        layout=SlotLayout(1, entries, keep_current),
        tp=2,
        gpu_memory_bytes=16 * GIB,
        max_context_tokens=32768,
        kv_dtype=KVDtype.INT8,
        weight_format=WeightFormat.NVFP4_MIXED,
    )
    return plan_gpu(shape, profile).state_bytes


def test_state_slot_of_the_27b_shape_has_76972032_bytes_on_each_of_two_gpus(
    shape: ModelShape,
) -> None:
    assert state_slot_bytes(shape, tp=2, conv_bytes=GPU_ACTIVATION_BYTES) == _SLOT_BYTES


def test_state_slot_is_48_layers_of_recurrent_and_convolution_state() -> None:
    assert _SLOT_BYTES == 48 * (24 * 128 * 128 * 4 + 5120 * 3 * 2)


@pytest.mark.parametrize(("with_mtp", "expected_bytes"), [(False, 16_896), (True, 17_952)])
def test_int8_kv_bytes_per_token_on_each_of_two_gpus(
    shape: ModelShape, with_mtp: bool, expected_bytes: int
) -> None:
    per_token = kv_bytes_per_token(shape, tp=2, kv_dtype=KVDtype.INT8, with_mtp=with_mtp)

    assert per_token == expected_bytes


@pytest.mark.parametrize(
    ("entries", "expected_mib"), [(0, 147), (1, 294), (2, 440), (3, 587), (4, 734)]
)
def test_states_take_the_documented_mib_per_gpu(
    shape: ModelShape, entries: int, expected_mib: int
) -> None:
    assert round(_state_bytes(shape, entries) / _MIB) == expected_mib


@pytest.mark.parametrize("entries", [1, 2, 3, 4])
def test_drop_saves_exactly_one_slot_per_entry(shape: ModelShape, entries: int) -> None:
    saved = _state_bytes(shape, entries) - _state_bytes(shape, entries, keep_current=False)

    assert saved == entries * _SLOT_BYTES


@pytest.mark.parametrize(
    ("keep_reserved_bytes", "drop_reserved_bytes"),
    [(1_920_778_496, 1_843_806_464), (2_069_444_864, 1_992_472_832)],
    ids=["without MTP", "with MTP"],
)
def test_drop_saves_the_bytes_measured_on_gpus(
    shape: ModelShape, keep_reserved_bytes: int, drop_reserved_bytes: int
) -> None:
    saved = _state_bytes(shape, 1) - _state_bytes(shape, 1, keep_current=False)

    assert saved == keep_reserved_bytes - drop_reserved_bytes
