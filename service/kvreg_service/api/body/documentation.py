"""The OpenAPI schemas of routes that read their bodies themselves."""

from __future__ import annotations

from typing import Any

from pydantic.config import JsonDict

from kvreg_service.api.body.extension_headers import HEADER_SCHEMAS
from kvreg_service.api.body.request_body import RequestBody

REF_TEMPLATE = "#/components/schemas/{model}"

NOTHING: JsonDict = {"type": "null"}
"""The schema of a field for which only null is accepted."""


def body_schema(model: type[RequestBody]) -> dict[str, Any]:
    """Build the ``openapi_extra`` of a route that reads this body."""
    schema = {"$ref": REF_TEMPLATE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def generation_schema(model: type[RequestBody]) -> dict[str, Any]:
    """Build the ``openapi_extra`` of a route that also reads the extension headers."""
    parameters = [
        {"name": name, "in": "header", "required": False, "schema": schema}
        for name, schema in HEADER_SCHEMAS.items()
    ]
    return {**body_schema(model), "parameters": parameters}
