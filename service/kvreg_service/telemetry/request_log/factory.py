"""Builds the request log from the settings and the memory plan of the engine."""

from __future__ import annotations

import socket
from importlib.metadata import version

from kvreg_service.core.memory.budget import MemoryPlan
from kvreg_service.engine.options import EngineOptions
from kvreg_service.settings import Settings
from kvreg_service.telemetry.request_log.lines import EngineFacts
from kvreg_service.telemetry.request_log.request_log import LogCounts, LogFile, RequestLog


def open_request_log(
    settings: Settings, options: EngineOptions, plan: MemoryPlan, counts: LogCounts | None = None
) -> RequestLog | None:
    """Start the request log, or return None where the settings turn it off.

    ``options`` and ``plan`` are those of the engine. Close the log after the engine.
    """
    if settings.request_log is None:
        return None
    salt = settings.request_log_salt
    file = LogFile(
        settings.request_log,
        max_bytes=settings.request_log_max_bytes,
        max_files=settings.request_log_files,
        salt=salt.get_secret_value() if salt is not None else None,
    )
    return RequestLog(file, _facts(settings, options, plan), counts)


def _facts(settings: Settings, options: EngineOptions, plan: MemoryPlan) -> EngineFacts:
    return EngineFacts(
        version=version("kvreg"),
        host=socket.gethostname(),
        model=settings.model_id,
        profile=settings.profile,
        profile_hash=settings.profile_hash,
        lanes=options.lanes,
        entries=options.entries,
        anchors=options.layout.anchors,
        current_state=settings.current_state,
        eviction=options.eviction,
        prefix_reuse=options.prefix_reuse,
        max_context_tokens=plan.demand.max_context_tokens,
        prefill_chunk_tokens=options.prefill_chunk_tokens,
        queue_limit=options.queue_limit,
        queue_timeout_s=options.queue_timeout_s,
        kv_dtype=options.kv_dtype.value,
        device=options.device,
        num_pages=plan.num_pages,
        page_bytes=plan.demand.page_bytes,
        slot_bytes=plan.demand.slot_bytes,
    )
