"""The report of ``kvreg plan``, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.memory_report import build_report
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.settings import load_settings


def report_of(weight_format: str = "auto", **flags: Any) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(build_report(load_settings(flags), weight_format).as_json())
    return report


@pytest.fixture
def large_model(tmp_path: Path) -> Path:
    """Return a folder with the configuration of the 27B shape, which is all that a plan reads."""
    config = {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "quantization_config": {"quant_method": "compressed-tensors"},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_plan_of_the_27b_shape_has_the_known_bytes_per_slot_and_token(large_model: Path) -> None:
    report = report_of(model=large_model, gpu_memory_gib=16, tp=2, kv_dtype="int8")
    assert report["state_slot_bytes"] == 76_972_032
    assert report["page_bytes"] == 64 * 16_896


def test_drafting_adds_its_own_kv_cache(large_model: Path) -> None:
    report = report_of(model=large_model, gpu_memory_gib=16, tp=2, kv_dtype="int8", mtp=3)
    assert report["page_bytes"] == 64 * 17_952


def test_dropping_the_current_state_saves_one_slot_per_entry(large_model: Path) -> None:
    common = {"model": large_model, "gpu_memory_gib": 16, "tp": 2, "entries": 3}
    keep = report_of(**common)
    drop = report_of(**common, current_state="drop")
    assert keep["state_bytes"] - drop["state_bytes"] == 3 * 76_972_032


def test_quantised_configuration_is_planned_with_its_weight_format(large_model: Path) -> None:
    assert report_of(model=large_model, gpu_memory_gib=16, tp=2)["weight_format"] == "nvfp4-mixed"


def test_given_weight_format_takes_precedence(large_model: Path) -> None:
    report = report_of("fp16", model=large_model, gpu_memory_gib=16, tp=2)
    assert (report["weight_format"], report["fits"]) == ("fp16", False)
    assert report["short_by_bytes"] > 0


def test_unknown_weight_format_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="nvfp4-mixed"):
        report_of("bf17", gpu_memory_gib=16)


def test_default_context_is_the_capacity_of_the_pages(large_model: Path) -> None:
    report = report_of(model=large_model, gpu_memory_gib=16, tp=2, kv_dtype="int8")
    assert report["fits"]
    assert report["max_context_tokens"] == min(262144, report["kv_tokens"])


def test_sums_of_the_report_add_up(large_model: Path) -> None:
    report = report_of(model=large_model, gpu_memory_gib=16, tp=2)
    parts = ("weight_bytes", "workspace_bytes", "state_bytes", "kv_bytes", "left_bytes")
    assert sum(report[part] for part in parts) == report["available_bytes"]


def test_plan_without_gpus_is_for_the_cpu() -> None:
    report = report_of(model=REFERENCE_MODEL_PATH)
    assert (report["place"], report["weight_format"]) == ("cpu", None)


@pytest.mark.parametrize("flags", [{"device": "cuda"}, {"tp": 2}], ids=str)
def test_plan_for_gpus_requires_their_memory(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="gpu-memory-gib"):
        report_of(**flags)


def test_model_that_cannot_be_sharded_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="multiple"):
        report_of(gpu_memory_gib=16, tp=3)


def test_text_shows_whether_it_fits(large_model: Path) -> None:
    flags = {"model": large_model, "gpu_memory_gib": 16, "tp": 2}
    fits = build_report(load_settings(flags), "auto").as_text()
    short = build_report(load_settings(flags), "fp16").as_text()
    assert "It fits." in fits
    assert "It does not fit: short by" in short
