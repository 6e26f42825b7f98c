"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kvreg_service.api.chat_request import IGNORED_FIELDS, ChatRequest
from kvreg_service.api.chat_response import ChatCompletion
from kvreg_service.api.chat_run import ChatRun
from kvreg_service.api.connection import run_while_connected
from kvreg_service.api.context import ApiContext
from kvreg_service.api.event_stream import EventStreamResponse
from kvreg_service.api.openapi import body_schema
from kvreg_service.api.request_body import read_body

_DESCRIPTION = f"""Answer a conversation, whole or as server-sent events.

`max_tokens` and `max_completion_tokens` (the smaller counts) start at 1; left out, the answer may
fill the context, and a larger value than fits is cut to what fits.

Left out, `temperature` and its like take the defaults of the model's generation config.

A streamed answer has exactly one chunk with `usage` and `timings`: the extra one without choices
when `stream_options.include_usage` is set, else the one with the finish reason.

Accepted without effect: {", ".join(f"`{name}`" for name in IGNORED_FIELDS)}, and any field that is
not listed. `tool_choice: none` leaves the tools in the prompt, so that it stays the same prefix."""


def build_chat_router(context: ApiContext) -> APIRouter:
    """Build the route."""
    router = APIRouter(tags=["chat"])

    @router.post(
        "/v1/chat/completions",
        summary="Create a chat completion",
        description=_DESCRIPTION,
        openapi_extra=body_schema(ChatRequest),
        responses={200: {"model": ChatCompletion, "content": {"text/event-stream": {}}}},
    )
    async def create_chat_completion(request: Request) -> Response:
        body = await read_body(request, ChatRequest, max_bytes=context.max_body_bytes)
        context.require_model(body.model)
        run = ChatRun(context, body)
        headers: dict[str, str] = {"X-Request-Id": run.request_id}
        is_handed_over = False
        try:
            await run_while_connected(request.receive, run.start())
            if body.stream:
                is_handed_over = True
                return EventStreamResponse(run.stream(), on_close=run.aclose, headers=headers)
            content: dict[str, Any] = await run_while_connected(request.receive, run.finish())
            return JSONResponse(content, headers=headers)
        finally:
            if not is_handed_over:
                await run.aclose()

    return router
