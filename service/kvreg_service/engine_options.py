"""From settings to the options of an engine. ``__main__`` builds the engine; tests do the same."""

from __future__ import annotations

from kvreg_service.core.labels import CurrentState
from kvreg_service.core.memory.budget import GIB, KVDtype
from kvreg_service.engine.options import EngineOptions
from kvreg_service.settings import Settings


def engine_options(settings: Settings) -> EngineOptions:
    """Return the options of an engine on the CPU.

    Raises:
        ConfigurationError: The settings contradict each other.
    """
    return EngineOptions(
        model_path=settings.model,
        model_name=settings.model_id,
        lanes=settings.lanes,
        entries=settings.entries,
        anchors=settings.anchors,
        keep_current=settings.current_state is CurrentState.KEEP,
        eviction=settings.eviction,
        prefix_reuse=settings.prefix_reuse,
        max_context_tokens=settings.max_context,
        memory_bytes=int(settings.memory_gib * GIB),
        num_pages=settings.kv_pages,
        kv_dtype=KVDtype.FP32 if settings.kv_dtype == "auto" else KVDtype(settings.kv_dtype),
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        queue_limit=settings.queue_limit,
        queue_timeout_s=settings.queue_timeout_s,
        device=settings.device,
        num_threads=settings.threads,
        profile=settings.profile,
        profile_hash=settings.profile_hash,
    )
