"""Generates the HTTP response for validated parameters, whole or streamed."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from kvreg_service.api.authentication import tenant_of
from kvreg_service.api.generation.connection import run_while_connected
from kvreg_service.api.generation.context import ApiContext
from kvreg_service.api.generation.event_stream import EventStreamResponse
from kvreg_service.api.generation.params import GenerationParams
from kvreg_service.api.generation.response_encoder import ResponseEncoder
from kvreg_service.api.generation.response_session import ResponseSession


async def respond(
    request: Request, context: ApiContext, params: GenerationParams, encoder: ResponseEncoder
) -> Response:
    """Generate a response for as long as the client stays connected.

    Raises:
        KvregError: The request is refused, or failed before its response started.
        ClientDisconnect: The client disconnected before that.
    """
    tenant = tenant_of(request).name
    session = ResponseSession(context, params, encoder, tenant, _trace_parent_of(request))
    is_streaming = False
    try:
        await run_while_connected(request.receive, session.start())
        if params.is_streamed:
            is_streaming = True
            return EventStreamResponse(
                session.stream(), on_close=session.aclose, headers=encoder.headers
            )
        body = await run_while_connected(request.receive, session.finish())
        return JSONResponse(body, headers=dict(encoder.headers))
    finally:
        if not is_streaming:
            await session.aclose()


def _trace_parent_of(request: Request) -> str | None:
    """Return the ``traceparent`` header; None if it is missing or not unique."""
    headers = request.headers.getlist("traceparent")
    return headers[0] if len(headers) == 1 else None
