"""Liveness, startup and readiness probes."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from kvreg_service.core.errors import Draining, EngineDown, Unavailable
from kvreg_service.engine.interface.protocol import EngineProtocol


class Health(BaseModel):
    """The body of a probe that succeeds."""

    status: Literal["ok", "draining"] = "ok"


def build_health_router(engine: EngineProtocol) -> APIRouter:
    """Build the routes."""
    router = APIRouter(tags=["health"])

    def require_alive() -> None:
        if not engine.is_alive:
            raise EngineDown("the engine loop has stopped; restart the process")

    @router.head("/livez", include_in_schema=False)
    @router.head("/startupz", include_in_schema=False)
    @router.get("/livez", summary="Liveness: fails if the process must be restarted")
    @router.get("/startupz", summary="Startup: fails until the engine has started")
    async def livez() -> Health:
        require_alive()
        return Health()

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Readiness: fails while new requests are refused")
    async def readyz() -> Health:
        require_alive()
        if engine.is_draining:
            raise Draining("the engine is draining and refuses new requests")
        if not engine.is_ready:
            raise Unavailable("the engine is not ready")
        return Health()

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="Health: fails if the engine cannot finish its requests")
    async def health() -> Health:
        require_alive()
        if engine.is_draining:
            return Health(status="draining")
        if not engine.is_ready:
            raise Unavailable("the engine is not ready")
        return Health()

    return router
