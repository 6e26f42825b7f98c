"""``POST /v1/chat/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from kvreg_service.api.body.documentation import generation_schema
from kvreg_service.api.body.extension_headers import read_extension_headers
from kvreg_service.api.body.request_body import read_body
from kvreg_service.api.generation.context import ApiContext
from kvreg_service.api.generation.respond import respond
from kvreg_service.api.openai.request import IGNORED_FIELDS, ChatRequest
from kvreg_service.api.openai.response import ChatCompletion, ChatCompletionEncoder

BODIES = (ChatRequest,)
"""For the OpenAPI document."""

_DESCRIPTION = f"""Generate an answer, whole or as server-sent events.

The smaller of `max_tokens` and `max_completion_tokens` counts, clamped to the context limit. If
both are missing, the context limits the answer.

Missing sampling fields take the defaults of the model's generation config.

A stream has exactly one chunk with `usage` and `timings`: the extra one without choices if
`stream_options.include_usage` is set, otherwise the one with the finish reason.

Accepted without effect: {", ".join(f"`{name}`" for name in IGNORED_FIELDS)}, and
unknown fields. `tool_choice: none` leaves the tools in the prompt, so that its prefix stays the
same, and tool calls in the text of the answer."""


def build_router(context: ApiContext) -> APIRouter:
    """Build the route."""
    router = APIRouter(tags=["chat"])

    @router.post(
        "/v1/chat/completions",
        summary="Create a chat completion",
        description=_DESCRIPTION,
        openapi_extra=generation_schema(ChatRequest),
        responses={200: {"model": ChatCompletion, "content": {"text/event-stream": {}}}},
    )
    async def create_chat_completion(request: Request) -> Response:
        body = await read_body(request, ChatRequest, max_bytes=context.max_body_bytes)
        context.model.require(body.model)
        headers = read_extension_headers(request.headers)
        params = body.with_headers(headers).params(context.sampling_defaults)
        encoder = ChatCompletionEncoder(
            context.model.model_id,
            includes_usage=body.includes_usage,
            includes_logprobs=bool(body.logprobs),
        )
        return await respond(request, context, params, encoder)

    return router
