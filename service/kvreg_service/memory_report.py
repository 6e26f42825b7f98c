"""The report of ``kvreg plan``: slots, pages and remaining memory, as text or JSON.

Owns the choice between GPU and CPU and the text of the report. The arithmetic is that of the
engine; nothing is allocated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.labels import CurrentState
from kvreg_service.core.memory.budget import GIB, KVDtype, MemoryPlan, WeightFormat
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.engine.reservation import GpuProfile, model_shape, plan_cpu, plan_gpu
from kvreg_service.engine_options import engine_options
from kvreg_service.model.config import ModelConfig
from kvreg_service.settings import Settings


@dataclass(frozen=True)
class MemoryReport:
    """A memory plan and the settings it was made for."""

    settings: Settings
    place: Literal["cpu", "card"]
    weight_format: WeightFormat | None
    kv_dtype: KVDtype
    plan: MemoryPlan

    def as_json(self) -> str:
        """Return the report as one JSON object; sizes are bytes per device."""
        plan, settings = self.plan, self.settings
        report = {
            "fits": plan.fits,
            "place": self.place,
            "tp": settings.tp,
            "mtp": settings.mtp,
            "lanes": settings.lanes,
            "entries": settings.entries,
            "anchors": settings.anchors,
            "current_state": settings.current_state,
            "weight_format": self.weight_format.value if self.weight_format else None,
            "kv_dtype": self.kv_dtype.value,
            "max_context_tokens": plan.demand.max_context_tokens,
            "available_bytes": plan.available_bytes,
            "weight_bytes": plan.demand.weight_bytes,
            "workspace_bytes": plan.demand.workspace_bytes,
            "state_slots": plan.demand.num_slots,
            "state_slot_bytes": plan.demand.slot_bytes,
            "state_bytes": plan.state_bytes,
            "pages": plan.num_pages,
            "page_bytes": plan.demand.page_bytes,
            "kv_bytes": plan.kv_bytes,
            "kv_tokens": plan.kv_tokens,
            "kept_tokens": plan.kept_tokens(settings.lanes),
            "required_bytes": plan.required_bytes,
            "left_bytes": plan.left_bytes,
            "short_by_bytes": plan.short_by_bytes,
        }
        return json.dumps(report, indent=2)

    def as_text(self) -> str:
        """Return the report as a text table."""
        plan, demand = self.plan, self.plan.demand
        rows = [
            ("available", "", plan.available_bytes),
            *self._fixed_rows(),
            ("states", f"{demand.num_slots} slots of {_size(demand.slot_bytes)}", plan.state_bytes),
            (
                "keys and values",
                f"{plan.num_pages} pages of {_size(demand.page_bytes)} = {plan.kv_tokens} tokens",
                plan.kv_bytes,
            ),
            ("left", "", plan.left_bytes),
        ]
        width = max(len(detail) for _, detail, _ in rows)
        lines = [self._headline()]
        lines += [f"  {name:<16}{detail:<{width}}  {_size(n):>12}" for name, detail, n in rows]
        lines.append(self._verdict())
        return "\n".join(lines)

    def _fixed_rows(self) -> list[tuple[str, str, int]]:
        if self.weight_format is None:
            return []
        counted = f"counted from the config as {self.weight_format.value}"
        demand = self.plan.demand
        return [
            ("weights", counted, demand.weight_bytes),
            ("workspace", "assumed, not measured", demand.workspace_bytes),
        ]

    def _headline(self) -> str:
        settings = self.settings
        place = "the CPU" if self.place == "cpu" else f"each of {settings.tp} card(s)"
        context_tokens = self.plan.demand.max_context_tokens
        return (
            f"{settings.model_id} on {place}: {settings.lanes} lane(s), {settings.entries} "
            f"entries that {settings.current_state} their current state, {settings.anchors} "
            f"anchors, KV as {self.kv_dtype.value}, context {context_tokens} tokens"
        )

    def _verdict(self) -> str:
        if self.plan.fits:
            kept = self.plan.kept_tokens(self.settings.lanes)
            return (
                "It fits. With every lane at its full context, the pages hold "
                f"{kept} more tokens for sequences at rest."
            )
        return f"It does not fit: short by {_size(self.plan.short_by_bytes)}."


def build_report(settings: Settings, weight_format: str) -> MemoryReport:
    """Plan for GPUs with ``gpu_memory_gib``, or for the CPU without that setting.

    Raises:
        ConfigurationError: The model cannot be split over ``tp`` GPUs, or its config is invalid.
    """
    config = ModelConfig.from_path(settings.model)
    if settings.gpu_memory_gib is None:
        if settings.device == "cuda" or settings.tp > 1:
            raise ConfigurationError("a plan for cards needs --gpu-memory-gib, that of one card")
        options = engine_options(settings)
        return MemoryReport(settings, "cpu", None, options.kv_dtype, plan_cpu(config, options))
    chosen = _weight_format(settings, weight_format)
    kv_dtype = KVDtype.FP16 if settings.kv_dtype == "auto" else KVDtype(settings.kv_dtype)
    profile = GpuProfile(
        layout=SlotLayout(
            settings.lanes,
            settings.entries,
            settings.current_state is CurrentState.KEEP,
            settings.anchors,
        ),
        tp=settings.tp,
        gpu_memory_bytes=int(settings.gpu_memory_gib * GIB),
        max_context_tokens=settings.max_context or config.max_position_embeddings,
        kv_dtype=kv_dtype,
        weight_format=chosen,
        with_mtp=settings.mtp > 0,
        num_pages=settings.kv_pages,
    )
    plan = plan_gpu(model_shape(config), profile)
    if settings.max_context is None:
        # Without a setting, the context is what the model and the pages allow.
        reachable = max(1, min(profile.max_context_tokens, plan.kv_tokens))
        plan = replace(plan, demand=replace(plan.demand, max_context_tokens=reachable))
    return MemoryReport(settings, "card", chosen, kv_dtype, plan)


def _weight_format(settings: Settings, asked: str) -> WeightFormat:
    known = {weight_format.value: weight_format for weight_format in WeightFormat}
    if asked in known:
        return known[asked]
    if asked != "auto":
        raise ConfigurationError(
            f"weight_format = {asked}: should be auto or one of {', '.join(known)}"
        )
    folder = settings.model if settings.model.is_dir() else settings.model.parent
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = raw.get("text_config", raw)
    # Every public format of quantized weights has this key.
    if "quantization_config" in raw or "quantization_config" in text:
        return WeightFormat.NVFP4_MIXED
    dtype = text.get("dtype") or text.get("torch_dtype") or raw.get("dtype")
    return WeightFormat.FP32 if dtype == "float32" else WeightFormat.FP16


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes} B"
