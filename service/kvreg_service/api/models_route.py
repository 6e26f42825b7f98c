"""``GET /v1/models``: the one model that this engine serves."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from kvreg_service.api.context import ApiContext


class ModelCard(BaseModel):
    """A served model. ``max_model_len`` is the limit of prompt and answer together, in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kvreg"
    max_model_len: int


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def build_models_router(context: ApiContext) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/v1/models", tags=["models"])

    def card() -> ModelCard:
        profile = context.engine.snapshot().profile
        return ModelCard(
            id=context.model_id,
            created=context.created_s,
            max_model_len=profile.max_context_tokens,
        )

    @router.get("", summary="List the served models")
    async def list_models() -> ModelList:
        return ModelList(data=[card()])

    @router.get("/{model_id:path}", summary="Describe one model")
    async def get_model(model_id: str) -> ModelCard:
        context.require_model(model_id)
        return card()

    return router
