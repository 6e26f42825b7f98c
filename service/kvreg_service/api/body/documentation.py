"""How routes that read their own bodies describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic.config import JsonDict

from kvreg_service.api.body.extension_headers import HEADER_SCHEMAS
from kvreg_service.api.body.request_body import RequestBody

REF_TEMPLATE = "#/components/schemas/{model}"

NOTHING: JsonDict = {"type": "null"}
"""The schema of a field that is known only to be refused."""


def body_schema(model: type[RequestBody]) -> dict[str, Any]:
    """Build a route's ``openapi_extra`` that says which body it reads."""
    schema = {"$ref": REF_TEMPLATE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answer_schema(model: type[RequestBody]) -> dict[str, Any]:
    """Build the same for a route that also reads the headers which stand for fields."""
    parameters = [
        {"name": name, "in": "header", "required": False, "schema": schema}
        for name, schema in HEADER_SCHEMAS.items()
    ]
    return {**body_schema(model), "parameters": parameters}
