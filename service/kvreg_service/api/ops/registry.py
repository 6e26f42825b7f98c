"""``/v1/registry``: the registry and its profile; pinning and dropping of kept sequences."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from kvreg_service.api.authentication import tenant_of
from kvreg_service.api.body.documentation import body_schema
from kvreg_service.api.body.request_body import RequestBody, read_body
from kvreg_service.core.errors import SessionNotFound
from kvreg_service.engine.interface.protocol import EngineProtocol
from kvreg_service.engine.interface.snapshot import (
    AnchorView,
    EntryView,
    LaneView,
    RegistrySnapshot,
)

# So that a forgotten pin expires.
MAX_PIN_S = 7 * 24 * 3600.0

EntryNumber = Annotated[int, Path(ge=0)]
SequenceNumber = Annotated[int, Path(ge=0)]


class PinRequest(RequestBody):
    """How long a sequence cannot be evicted."""

    ttl_s: float = Field(gt=0, le=MAX_PIN_S)


class DroppedEntry(BaseModel):
    """An entry whose sequence was dropped."""

    entry_id: int
    dropped: Literal[True] = True


class DroppedSequence(BaseModel):
    """A dropped sequence."""

    sequence_id: int
    dropped: Literal[True] = True


class KeptSequence(BaseModel):
    """The place of a sequence: a lane, an entry or an anchor; the others are null."""

    sequence_id: int
    lane: LaneView | None = None
    entry: EntryView | None = None
    anchor: AnchorView | None = None


def build_registry_router(engine: EngineProtocol, max_body_bytes: int) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/v1/registry", tags=["registry"])

    async def pin(request: Request, sequence_id: int) -> KeptSequence:
        body = await read_body(request, PinRequest, max_bytes=max_body_bytes)
        view = tenant_of(request).view
        engine.pin(sequence_id, body.ttl_s, view)
        return find_sequence(engine.snapshot(view), sequence_id)

    def unpin(request: Request, sequence_id: int) -> KeptSequence:
        view = tenant_of(request).view
        engine.unpin(sequence_id, view)
        return find_sequence(engine.snapshot(view), sequence_id)

    def sequence_of(request: Request, entry_id: int) -> int:
        return sequence_of_entry(engine.snapshot(tenant_of(request).view), entry_id)

    @router.get("", summary="Show lanes, entries, anchors, pools and the effective profile")
    async def get_registry(request: Request) -> RegistrySnapshot:
        return engine.snapshot(tenant_of(request).view)

    @router.delete("/entries/{entry_id}", summary="Drop the sequence of an entry")
    async def drop_entry(request: Request, entry_id: EntryNumber) -> DroppedEntry:
        engine.drop_sequence(sequence_of(request, entry_id), tenant_of(request).view)
        return DroppedEntry(entry_id=entry_id)

    @router.delete("/sequences/{sequence_id}", summary="Drop a sequence")
    async def drop_sequence(request: Request, sequence_id: SequenceNumber) -> DroppedSequence:
        engine.drop_sequence(sequence_id, tenant_of(request).view)
        return DroppedSequence(sequence_id=sequence_id)

    pin_body = body_schema(PinRequest)

    @router.put(
        "/entries/{entry_id}/pin", summary="Pin the sequence of an entry", openapi_extra=pin_body
    )
    async def pin_entry(request: Request, entry_id: EntryNumber) -> KeptSequence:
        return await pin(request, sequence_of(request, entry_id))

    @router.delete("/entries/{entry_id}/pin", summary="Unpin the sequence of an entry")
    async def unpin_entry(request: Request, entry_id: EntryNumber) -> KeptSequence:
        return unpin(request, sequence_of(request, entry_id))

    @router.put("/sequences/{sequence_id}/pin", summary="Pin a sequence", openapi_extra=pin_body)
    async def pin_sequence(request: Request, sequence_id: SequenceNumber) -> KeptSequence:
        return await pin(request, sequence_id)

    @router.delete("/sequences/{sequence_id}/pin", summary="Unpin a sequence")
    async def unpin_sequence(request: Request, sequence_id: SequenceNumber) -> KeptSequence:
        return unpin(request, sequence_id)

    return router


def sequence_of_entry(snapshot: RegistrySnapshot, entry_id: int) -> int:
    """Return the sequence id of an entry.

    Raises:
        SessionNotFound: The entry does not exist, is empty or belongs to another tenant.
    """
    for entry in snapshot.entries:
        if entry.entry_id == entry_id and entry.sequence_id is not None:
            return entry.sequence_id
    raise SessionNotFound(f"entry {entry_id} does not exist or is empty", entry=entry_id)


def find_sequence(snapshot: RegistrySnapshot, sequence_id: int) -> KeptSequence:
    """Return the place of a sequence.

    Raises:
        SessionNotFound: The sequence was dropped in the meantime.
    """
    for lane in snapshot.lanes:
        if lane.sequence_id == sequence_id:
            return KeptSequence(sequence_id=sequence_id, lane=lane)
    for entry in snapshot.entries:
        if entry.sequence_id == sequence_id:
            return KeptSequence(sequence_id=sequence_id, entry=entry)
    for anchor in snapshot.anchors:
        if anchor.sequence_id == sequence_id:
            return KeptSequence(sequence_id=sequence_id, anchor=anchor)
    raise SessionNotFound(f"sequence {sequence_id} is not kept", sequence_id=sequence_id)
