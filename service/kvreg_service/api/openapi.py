"""The OpenAPI document: request bodies, error responses and API keys.

Owns what FastAPI cannot derive, because the routes read their bodies themselves and middleware
checks the keys.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kvreg_service.api.authentication import OPEN_PATHS
from kvreg_service.api.body.documentation import REF_TEMPLATE
from kvreg_service.api.body.request_body import RequestBody
from kvreg_service.api.errors import MESSAGES_PATH


class ErrorDetail(BaseModel):
    """An error. ``code`` is stable; ``param`` names the invalid field, if there is one."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


class MessagesErrorDetails(BaseModel):
    """Machine-readable details. ``error_code`` is stable; ``param`` names the invalid field."""

    error_code: str
    param: str | None


class MessagesErrorDetail(BaseModel):
    """An error of the Messages API."""

    type: str
    message: str
    details: MessagesErrorDetails


class MessagesErrorBody(BaseModel):
    """The body of every error response of the Messages API."""

    type: Literal["error"]
    error: MessagesErrorDetail


def install_openapi(
    app: FastAPI, *, bodies: tuple[type[RequestBody], ...], needs_keys: bool
) -> None:
    """Replace the application's OpenAPI document by the complete one, built on first use."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            _add_models(document, bodies)
            _describe_errors(document)
            if needs_keys:
                _describe_keys(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]


def _add_models(document: dict[str, Any], bodies: tuple[type[RequestBody], ...]) -> None:
    inputs = [(model, "validation") for model in (*bodies, ErrorBody, MessagesErrorBody)]
    _, definitions = models_json_schema(
        inputs,  # type: ignore[arg-type]
        ref_template=REF_TEMPLATE,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


def _describe_errors(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        model = MessagesErrorBody if path.startswith(MESSAGES_PATH) else ErrorBody
        schema = {"$ref": REF_TEMPLATE.format(model=model.__name__)}
        error = {"description": "Error", "content": {"application/json": {"schema": schema}}}
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = error


def _describe_keys(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN_PATHS else [{"bearer": []}, {"header": []}]
