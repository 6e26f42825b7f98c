"""Combines all routes for operating an engine."""

from __future__ import annotations

from fastapi import APIRouter

from kvreg_service.api.body.served_model import ServedModel
from kvreg_service.api.ops.admin import FitRequest, build_admin_router
from kvreg_service.api.ops.health import build_health_router
from kvreg_service.api.ops.metrics import build_metrics_router
from kvreg_service.api.ops.models import build_models_router
from kvreg_service.api.ops.registry import PinRequest, build_registry_router
from kvreg_service.api.ops.ui import build_ui_router
from kvreg_service.engine.interface.protocol import EngineProtocol
from kvreg_service.telemetry.metrics.metrics import Metrics
from kvreg_service.telemetry.ui.recent_requests import RecentRequests

BODIES = (FitRequest, PinRequest)
"""For the OpenAPI document."""


def build_router(
    engine: EngineProtocol,
    model: ServedModel,
    max_body_bytes: int,
    *,
    metrics: Metrics | None,
    recent: RecentRequests,
) -> APIRouter:
    """Build the routes; without ``metrics`` there is no ``/metrics``."""
    router = APIRouter()
    router.include_router(build_models_router(engine, model))
    router.include_router(build_registry_router(engine, max_body_bytes))
    router.include_router(build_admin_router(engine, max_body_bytes))
    router.include_router(build_health_router(engine))
    router.include_router(build_ui_router(recent))
    if metrics is not None:
        router.include_router(build_metrics_router(metrics))
    return router
