"""``GET /v1/models``: the served model, in the format of the client's API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from kvreg_service.api.body.served_model import ServedModel
from kvreg_service.api.errors import is_of_messages_api
from kvreg_service.engine.interface.protocol import EngineProtocol


class ModelCard(BaseModel):
    """A served model. ``max_model_len`` limits the tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kvreg"
    max_model_len: int


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ModelInfo(BaseModel):
    """A served model, in Anthropic's format."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str


class ModelPage(BaseModel):
    """All served models, as the only page of Anthropic's list."""

    data: list[ModelInfo]
    has_more: Literal[False] = False
    first_id: str
    last_id: str


def build_models_router(engine: EngineProtocol, model: ServedModel) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/v1/models", tags=["models"])

    def card() -> ModelCard:
        profile = engine.snapshot().profile
        return ModelCard(
            id=model.model_id,
            created=model.created_s,
            max_model_len=profile.max_context_tokens,
        )

    def info() -> ModelInfo:
        created = datetime.fromtimestamp(model.created_s, tz=UTC)
        return ModelInfo(
            id=model.model_id,
            display_name=model.model_id,
            created_at=created.isoformat().replace("+00:00", "Z"),
        )

    @router.get("", summary="List the served models")
    async def list_models(request: Request) -> ModelList | ModelPage:
        if is_of_messages_api(request):
            return ModelPage(data=[info()], first_id=model.model_id, last_id=model.model_id)
        return ModelList(data=[card()])

    @router.get("/{model_id:path}", summary="Get a model")
    async def get_model(request: Request, model_id: str) -> ModelCard | ModelInfo:
        model.require(model_id)
        return info() if is_of_messages_api(request) else card()

    return router
