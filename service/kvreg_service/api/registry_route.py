"""``/v1/registry``: what is kept, where, and under which profile."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from kvreg_service.api.authentication import tenant_of
from kvreg_service.api.context import ApiContext
from kvreg_service.core.errors import SessionNotFound
from kvreg_service.engine.interface import RegistrySnapshot


class DroppedEntry(BaseModel):
    """An entry that is empty now."""

    entry_id: int
    dropped: Literal[True] = True


def build_registry_router(context: ApiContext) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/v1/registry", tags=["registry"])

    @router.get("", summary="Show lanes, entries, pools and the effective profile")
    async def get_registry(request: Request) -> RegistrySnapshot:
        return context.engine.snapshot(tenant_of(request).view)

    @router.delete("/entries/{entry_id}", summary="Give up what an entry keeps")
    async def drop_entry(request: Request, entry_id: Annotated[int, Path(ge=0)]) -> DroppedEntry:
        view = tenant_of(request).view
        entries = {entry.entry_id: entry for entry in context.engine.snapshot(view).entries}
        entry = entries.get(entry_id)
        if entry is None or entry.sequence_id is None:
            raise SessionNotFound(f"entry {entry_id} does not exist or is empty", entry=entry_id)
        context.engine.drop_sequence(entry.sequence_id, view)
        return DroppedEntry(entry_id=entry_id)

    return router
