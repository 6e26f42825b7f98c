"""What `kvreg plan` answers: slots, pages and what is left on each card, from a config.json."""

from __future__ import annotations

import json
from pathlib import Path

from kvreg_service.core.budget import (
    GIB,
    MemoryPlan,
    WeightFormat,
    kv_bytes_per_token,
    weight_bytes,
)
from kvreg_service.engine.reservation import GpuProfile, model_shape, plan_gpu
from kvreg_service.model.config import ModelConfig

_MIB = 1 << 20


def detect_weight_format(model_path: Path) -> WeightFormat:
    """Return how a checkpoint stores its matrices, as its ``config.json`` says.

    A ``quantization_config`` of any kind counts as mixed NVFP4, the only one that is planned for.
    """
    file = model_path / "config.json" if model_path.is_dir() else model_path
    raw = json.loads(file.read_text(encoding="utf-8"))
    text = raw.get("text_config", raw)
    if "quantization_config" in raw or "quantization_config" in text:
        return WeightFormat.NVFP4_MIXED
    dtype = text.get("dtype") or text.get("torch_dtype") or raw.get("dtype")
    return WeightFormat.FP32 if dtype == "float32" else WeightFormat.FP16


def plan_report(model_path: Path, profile: GpuProfile) -> dict[str, object]:
    """Return the plan of one card as plain numbers, all sizes in bytes.

    Raises:
        CheckpointError: the configuration cannot be read.
        ConfigurationError: the model cannot be split over the cards.
    """
    config = ModelConfig.from_path(model_path)
    shape = model_shape(config)
    plan: MemoryPlan = plan_gpu(shape, profile)
    layout = profile.layout
    weights = weight_bytes(
        shape, tp=profile.tp, weight_format=profile.weight_format, with_mtp=profile.with_mtp
    )
    return {
        "model": str(model_path),
        "tp": profile.tp,
        "lanes": layout.lanes,
        "entries": layout.entries,
        "current_state": "keep" if layout.keep_current else "drop",
        "max_context_tokens": profile.max_context_tokens,
        "weight_format": profile.weight_format.value,
        "weight_bytes": weights,
        "workspace_bytes": profile.workspace_bytes,
        "state_slots": layout.num_slots,
        "state_slot_bytes": plan.demand.slot_bytes,
        "state_bytes": plan.state_bytes,
        "kv_dtype": profile.kv_dtype.value,
        "kv_bytes_per_token": kv_bytes_per_token(
            shape, tp=profile.tp, kv_dtype=profile.kv_dtype, with_mtp=profile.with_mtp
        ),
        "page_bytes": plan.demand.page_bytes,
        "pages": plan.num_pages,
        "kv_tokens": plan.kv_tokens,
        "kv_bytes": plan.kv_bytes,
        "kept_tokens": max(0, plan.kv_tokens - layout.lanes * profile.max_context_tokens),
        "required_bytes": plan.required_bytes,
        "available_bytes": plan.available_bytes,
        "left_bytes": plan.left_bytes,
        "fits": plan.fits,
        "short_by_bytes": plan.short_by_bytes,
    }


def describe_plan(report: dict[str, object]) -> str:
    """Return the report as lines for a person. Sizes are of one card."""

    def gib(name: str) -> str:
        return f"{_number(report, name) / GIB:8.2f} GiB"

    slot_mib = _number(report, "state_slot_bytes") / _MIB
    lines = [
        f"{report['model']} over {report['tp']} card(s), each of {gib('available_bytes').strip()}",
        f"  weights    {gib('weight_bytes')}  counted from the config as {report['weight_format']}",
        f"  workspace  {gib('workspace_bytes')}  assumed",
        f"  states     {gib('state_bytes')}  {report['state_slots']} slots of {slot_mib:.2f} MiB "
        f"(lanes {report['lanes']}, entries {report['entries']}, "
        f"{report['current_state']} current)",
        f"  pages      {gib('kv_bytes')}  {report['pages']} pages, {report['kv_tokens']} tokens of "
        f"{report['kv_bytes_per_token']} bytes ({report['kv_dtype']})",
        f"  left       {gib('left_bytes')}",
        f"with every lane at its full context, pages for {report['kept_tokens']} tokens are left "
        "for sequences at rest",
    ]
    if report["fits"]:
        lines.append(f"fits, with a context of {report['max_context_tokens']} tokens")
    else:
        lines.append(
            f"does not fit: a context of {report['max_context_tokens']} tokens needs "
            f"{gib('required_bytes').strip()}, short by {report['short_by_bytes']} bytes "
            f"({gib('short_by_bytes').strip()})"
        )
    return "\n".join(lines)


def _number(report: dict[str, object], name: str) -> int:
    value = report[name]
    assert isinstance(value, int), f"{name} is a number of bytes"
    return value
