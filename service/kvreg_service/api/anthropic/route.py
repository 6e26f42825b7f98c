"""``POST /v1/messages``, and ``POST /v1/messages/count_tokens``, which creates nothing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from kvreg_service.api.anthropic.request import IGNORED_FIELDS, CountTokensRequest, MessagesRequest
from kvreg_service.api.anthropic.response import AnsweredMessage, MessageEncoder, TokenCount
from kvreg_service.api.authentication import tenant_of
from kvreg_service.api.body.documentation import answer_schema, body_schema
from kvreg_service.api.body.extension_fields import MAX_MARKS
from kvreg_service.api.body.extension_headers import read_extension_headers
from kvreg_service.api.body.request_body import read_body
from kvreg_service.api.generation.context import ApiContext
from kvreg_service.api.generation.respond import respond

BODIES = (MessagesRequest, CountTokensRequest)
"""For the OpenAPI document."""

_DESCRIPTION = f"""Answer a conversation, whole or as server-sent events.

`usage.input_tokens` are those that were computed; with `cache_read_input_tokens` they add up to
the prompt. The last event but one of a stream carries the final `usage` and `timings`.

A conversation that ends with text of an assistant is gone on with.

`cache_control` of blocks and tools marks what other conversations will begin with, in at most
{MAX_MARKS} places; of the body it has no effect.

Accepted without effect: {", ".join(f"`{name}`" for name in IGNORED_FIELDS)}, `is_error` of results,
signatures, and any field that is not listed."""


def build_router(context: ApiContext) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/v1/messages", tags=["messages"])

    @router.post(
        "",
        summary="Create a message",
        description=_DESCRIPTION,
        openapi_extra=answer_schema(MessagesRequest),
        responses={200: {"model": AnsweredMessage, "content": {"text/event-stream": {}}}},
    )
    async def create_message(request: Request) -> Response:
        body = await read_body(request, MessagesRequest, max_bytes=context.max_body_bytes)
        context.model.require(body.model)
        headers = read_extension_headers(request.headers)
        params = body.completed_by(headers).params(context.sampling_defaults)
        return await respond(request, context, params, MessageEncoder(context.model.model_id))

    @router.post(
        "/count_tokens",
        summary="Count the tokens of a prompt",
        openapi_extra=body_schema(CountTokensRequest),
    )
    async def count_tokens(request: Request) -> TokenCount:
        body = await read_body(request, CountTokensRequest, max_bytes=context.max_body_bytes)
        context.model.require(body.model)
        num_tokens = await context.count_tokens(body.conversation(), tenant_of(request).name)
        return TokenCount(input_tokens=num_tokens)

    return router
