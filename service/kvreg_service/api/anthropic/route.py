"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from kvreg_service.api.anthropic.request import IGNORED_FIELDS, CountTokensRequest, MessagesRequest
from kvreg_service.api.anthropic.response import MessageEncoder, ResponseMessage, TokenCount
from kvreg_service.api.authentication import tenant_of
from kvreg_service.api.body.documentation import body_schema, generation_schema
from kvreg_service.api.body.extension_fields import MAX_MARKS
from kvreg_service.api.body.extension_headers import read_extension_headers
from kvreg_service.api.body.request_body import read_body
from kvreg_service.api.generation.context import ApiContext
from kvreg_service.api.generation.respond import respond

BODIES = (MessagesRequest, CountTokensRequest)
"""For the OpenAPI document."""

_DESCRIPTION = f"""Generate an answer, whole or as server-sent events.

`usage.input_tokens` is the number of computed tokens; with `cache_read_input_tokens` it adds up to
the prompt. The last event but one of a stream has the final `usage` and `timings`.

If the conversation ends with text of the assistant, the answer continues it.

`cache_control` of blocks and tools marks the end of a prefix that other conversations share, in at
most {MAX_MARKS} places. At the top level it has no effect.

Accepted without effect: {", ".join(f"`{name}`" for name in IGNORED_FIELDS)}, `is_error` of results,
signatures, and unknown fields."""


def build_router(context: ApiContext) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/v1/messages", tags=["messages"])

    @router.post(
        "",
        summary="Create a message",
        description=_DESCRIPTION,
        openapi_extra=generation_schema(MessagesRequest),
        responses={200: {"model": ResponseMessage, "content": {"text/event-stream": {}}}},
    )
    async def create_message(request: Request) -> Response:
        body = await read_body(request, MessagesRequest, max_bytes=context.max_body_bytes)
        context.model.require(body.model)
        headers = read_extension_headers(request.headers)
        params = body.with_headers(headers).params(context.sampling_defaults)
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
