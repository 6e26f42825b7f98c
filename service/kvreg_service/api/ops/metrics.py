"""``GET /metrics``. It needs no API key, because no metric has a tenant label."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from kvreg_service.telemetry.metrics.exposition import Exposer
from kvreg_service.telemetry.metrics.metrics import Metrics


def build_metrics_router(metrics: Metrics) -> APIRouter:
    """Build the route."""
    router = APIRouter(tags=["health"])
    exposer = Exposer(metrics.registry)

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus, as text or OpenMetrics",
        response_class=PlainTextResponse,
    )
    async def get_metrics(request: Request) -> Response:
        page = exposer.expose(request.headers.get("accept", ""))
        return Response(page.content, headers={"Content-Type": page.content_type})

    return router
