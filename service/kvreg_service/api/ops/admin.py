"""``/admin``: draining the engine, and whether another profile would fit."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, model_validator

from kvreg_service.api.body.documentation import body_schema
from kvreg_service.api.body.request_body import RequestBody, read_body, unsupported
from kvreg_service.core.labels import CurrentState
from kvreg_service.engine.interface.profile import FitReport
from kvreg_service.engine.interface.protocol import EngineProtocol
from kvreg_service.settings import MAX_ANCHORS, MAX_ENTRIES, MAX_LANES


class FitRequest(RequestBody):
    """Another profile for the same model, device and memory."""

    lanes: int = Field(ge=1, le=MAX_LANES)
    entries: int = Field(ge=0, le=MAX_ENTRIES)
    current_state: CurrentState = CurrentState.KEEP
    # None means the anchors of this engine.
    anchors: int | None = Field(default=None, ge=0, le=MAX_ANCHORS)

    @model_validator(mode="after")
    def _drop_needs_entries(self) -> FitRequest:
        if self.current_state is CurrentState.DROP and self.entries == 0:
            raise unsupported("current_state = drop needs entries of at least 1 (got 0)")
        return self


# Far longer than a load balancer needs to notice a failing probe.
MAX_GRACE_S = 600.0
Grace = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_GRACE_S,
        allow_inf_nan=False,
        description="Seconds in which new requests are still accepted while `/readyz` fails.",
    ),
]


class DrainReport(BaseModel):
    """The requests in the engine when draining starts."""

    draining: Literal[True] = True
    running: int
    queued: int


def build_admin_router(engine: EngineProtocol, max_body_bytes: int) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.post(
        "/drain", status_code=202, summary="Refuse new requests and finish the accepted ones"
    )
    async def drain(grace_s: Grace = 0.0) -> DrainReport:
        engine.drain(grace_s)
        snapshot = engine.snapshot()
        return DrainReport(running=snapshot.running, queued=snapshot.queued)

    @router.post(
        "/fit",
        summary="Report whether another profile would fit",
        openapi_extra=body_schema(FitRequest),
    )
    async def fit(request: Request) -> FitReport:
        body = await read_body(request, FitRequest, max_bytes=max_body_bytes)
        return engine.fit(
            lanes=body.lanes,
            entries=body.entries,
            keep_current=body.current_state is CurrentState.KEEP,
            anchors=body.anchors,
        )

    return router
