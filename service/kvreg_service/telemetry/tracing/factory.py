"""Whether requests are traced, and where their spans go: off unless an endpoint is set.

Owns the choice, made at the start. OpenTelemetry is imported only where it is used; a package that
is missing then stops the start and is never passed over.
"""

from __future__ import annotations

import uuid
from importlib.metadata import version
from typing import TYPE_CHECKING

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.settings import Settings

if TYPE_CHECKING:
    from kvreg_service.telemetry.tracing.span_export import SpanCount, SpanSender

# Beside the drain's own time; a collector that is there takes far less.
FLUSH_TIMEOUT_S = 5.0


def require_tracing(settings: Settings) -> None:
    """Refuse to start where traces are asked for and cannot be made.

    Raises:
        ConfigurationError: The packages of the extra ``otlp`` are not installed.
    """
    if settings.otlp_endpoint is None:
        return
    try:
        import kvreg_service.telemetry.tracing.span_export  # noqa: F401 - only whether it can be
    except ImportError as err:
        raise ConfigurationError(
            f"otlp_endpoint = {settings.otlp_endpoint}: traces need the extra 'otlp', as by "
            f"`pip install 'kvreg[otlp]'` ({err})"
        ) from err


def start_tracing(settings: Settings, count: SpanCount) -> SpanSender | None:
    """Start to send spans, or return None where no endpoint is set.

    Effects: starts a thread. Whoever called closes what is returned, after the engine.

    Raises:
        ConfigurationError: The packages of the extra ``otlp`` are not installed.
    """
    if settings.otlp_endpoint is None:
        return None
    require_tracing(settings)
    from kvreg_service.telemetry.tracing.span_export import SpanSender, build_exporter

    return SpanSender(
        build_exporter(settings.otlp_endpoint),
        model=settings.model_id,
        ratio=settings.trace_ratio,
        resource={
            "service.name": "kvreg",
            "service.version": version("kvreg"),
            "service.instance.id": str(uuid.uuid4()),
            "kvreg.profile_hash": settings.profile_hash,
        },
        count=count,
    )
