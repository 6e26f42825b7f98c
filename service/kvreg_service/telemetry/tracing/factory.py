"""Builds the span exporter from the settings. Tracing is off unless an endpoint is set.

OpenTelemetry is imported only if tracing is on; a missing package is then an error at startup.
"""

from __future__ import annotations

import uuid
from importlib.metadata import version
from typing import TYPE_CHECKING

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.settings import Settings

if TYPE_CHECKING:
    from kvreg_service.telemetry.tracing.span_export import SpanCount, SpanSender

# In addition to the drain timeout; an available collector needs far less.
FLUSH_TIMEOUT_S = 5.0


def require_tracing(settings: Settings) -> None:
    """Check that tracing, if it is on, has the packages it needs.

    Raises:
        ConfigurationError: The packages of the extra ``otlp`` are not installed.
    """
    if settings.otlp_endpoint is None:
        return
    try:
        import kvreg_service.telemetry.tracing.span_export  # noqa: F401 - only to check that it can be imported
    except ImportError as err:
        raise ConfigurationError(
            f"otlp_endpoint = {settings.otlp_endpoint}: traces need the extra 'otlp', as by "
            f"`pip install 'kvreg[otlp]'` ({err})"
        ) from err


def start_tracing(settings: Settings, count: SpanCount) -> SpanSender | None:
    """Start to export spans, or return None if no endpoint is set.

    Effects:
        Starts a thread. The caller closes the returned object after the engine.

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
