"""``/v1/registry``: what is kept, where, and under which profile; pinning and dropping of it."""

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

# A pin that somebody forgets ends within a week.
MAX_PIN_S = 7 * 24 * 3600.0

EntryNumber = Annotated[int, Path(ge=0)]
SequenceNumber = Annotated[int, Path(ge=0)]


class PinRequest(RequestBody):
    """How long a sequence stays whatever else needs its place. A pin never lasts for ever."""

    ttl_s: float = Field(gt=0, le=MAX_PIN_S)


class DroppedEntry(BaseModel):
    """An entry that is empty now."""

    entry_id: int
    dropped: Literal[True] = True


class DroppedSequence(BaseModel):
    """A sequence that is no longer kept."""

    sequence_id: int
    dropped: Literal[True] = True


class KeptSequence(BaseModel):
    """Where a sequence is now: the place that has it is shown, the others are null."""

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

    def sequence_in(request: Request, entry_id: int) -> int:
        return sequence_of_entry(engine.snapshot(tenant_of(request).view), entry_id)

    @router.get("", summary="Show lanes, entries, anchors, pools and the effective profile")
    async def get_registry(request: Request) -> RegistrySnapshot:
        return engine.snapshot(tenant_of(request).view)

    @router.delete("/entries/{entry_id}", summary="Give up what an entry keeps")
    async def drop_entry(request: Request, entry_id: EntryNumber) -> DroppedEntry:
        engine.drop_sequence(sequence_in(request, entry_id), tenant_of(request).view)
        return DroppedEntry(entry_id=entry_id)

    @router.delete("/sequences/{sequence_id}", summary="Give up a kept sequence")
    async def drop_sequence(request: Request, sequence_id: SequenceNumber) -> DroppedSequence:
        engine.drop_sequence(sequence_id, tenant_of(request).view)
        return DroppedSequence(sequence_id=sequence_id)

    pin_body = body_schema(PinRequest)

    @router.put(
        "/entries/{entry_id}/pin", summary="Pin what an entry keeps", openapi_extra=pin_body
    )
    async def pin_entry(request: Request, entry_id: EntryNumber) -> KeptSequence:
        return await pin(request, sequence_in(request, entry_id))

    @router.delete("/entries/{entry_id}/pin", summary="Unpin what an entry keeps")
    async def unpin_entry(request: Request, entry_id: EntryNumber) -> KeptSequence:
        return unpin(request, sequence_in(request, entry_id))

    @router.put(
        "/sequences/{sequence_id}/pin", summary="Pin a kept sequence", openapi_extra=pin_body
    )
    async def pin_sequence(request: Request, sequence_id: SequenceNumber) -> KeptSequence:
        return await pin(request, sequence_id)

    @router.delete("/sequences/{sequence_id}/pin", summary="Unpin a kept sequence")
    async def unpin_sequence(request: Request, sequence_id: SequenceNumber) -> KeptSequence:
        return unpin(request, sequence_id)

    return router


def sequence_of_entry(snapshot: RegistrySnapshot, entry_id: int) -> int:
    """Return which sequence an entry keeps.

    Raises:
        SessionNotFound: There is no such entry, or it is empty, or it is another tenant's.
    """
    for entry in snapshot.entries:
        if entry.entry_id == entry_id and entry.sequence_id is not None:
            return entry.sequence_id
    raise SessionNotFound(f"entry {entry_id} does not exist or is empty", entry=entry_id)


def find_sequence(snapshot: RegistrySnapshot, sequence_id: int) -> KeptSequence:
    """Return where a sequence is.

    Raises:
        SessionNotFound: It was given up a moment ago.
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
