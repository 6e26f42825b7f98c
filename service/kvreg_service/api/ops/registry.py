"""``/v1/registry``: sessions, their kept states and the profile; pinning and dropping sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from kvreg_service.api.authentication import tenant_of
from kvreg_service.api.body.documentation import body_schema
from kvreg_service.api.body.request_body import RequestBody, read_body
from kvreg_service.core.errors import SessionNotFound
from kvreg_service.engine.interface.protocol import EngineProtocol
from kvreg_service.engine.interface.snapshot import RegistrySnapshot, SessionView

# So that a forgotten pin expires.
MAX_PIN_S = 7 * 24 * 3600.0

SessionNumber = Annotated[int, Path(ge=0)]


class PinRequest(RequestBody):
    """How long a session cannot be evicted."""

    ttl_s: float = Field(gt=0, le=MAX_PIN_S)


class DroppedSession(BaseModel):
    """A session whose kept states were freed."""

    session_id: int
    dropped: Literal[True] = True


def build_registry_router(engine: EngineProtocol, max_body_bytes: int) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/v1/registry", tags=["registry"])

    @router.get("", summary="Show lanes, sessions, pools and the effective profile")
    async def get_registry(request: Request) -> RegistrySnapshot:
        return engine.snapshot(tenant_of(request).view)

    @router.get("/sessions/{session_id}", summary="Show a session and its kept states")
    async def get_session(request: Request, session_id: SessionNumber) -> SessionView:
        return find_session(engine.snapshot(tenant_of(request).view), session_id)

    @router.delete("/sessions/{session_id}", summary="Drop a session")
    async def drop_session(request: Request, session_id: SessionNumber) -> DroppedSession:
        engine.drop_session(session_id, tenant_of(request).view)
        return DroppedSession(session_id=session_id)

    @router.put(
        "/sessions/{session_id}/pin",
        summary="Pin a session",
        openapi_extra=body_schema(PinRequest),
    )
    async def pin_session(request: Request, session_id: SessionNumber) -> SessionView:
        body = await read_body(request, PinRequest, max_bytes=max_body_bytes)
        view = tenant_of(request).view
        engine.pin(session_id, body.ttl_s, view)
        return find_session(engine.snapshot(view), session_id)

    @router.delete("/sessions/{session_id}/pin", summary="Unpin a session")
    async def unpin_session(request: Request, session_id: SessionNumber) -> SessionView:
        view = tenant_of(request).view
        engine.unpin(session_id, view)
        return find_session(engine.snapshot(view), session_id)

    return router


def find_session(snapshot: RegistrySnapshot, session_id: int) -> SessionView:
    """Return a session.

    Raises:
        SessionNotFound: It is not kept, or was dropped in the meantime.
    """
    for session in snapshot.sessions:
        if session.session_id == session_id:
            return session
    raise SessionNotFound(f"session {session_id} is not kept", session_id=session_id)
