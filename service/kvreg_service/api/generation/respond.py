"""From a body that has been read to the response: what the answering routes have in common."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from kvreg_service.api.authentication import tenant_of
from kvreg_service.api.generation.connection import run_while_connected
from kvreg_service.api.generation.context import ApiContext
from kvreg_service.api.generation.event_stream import EventStreamResponse
from kvreg_service.api.generation.params import AskedAnswer
from kvreg_service.api.generation.response_encoder import AnswerFormat
from kvreg_service.api.generation.response_session import AnswerRun


async def respond(
    request: Request, context: ApiContext, asked: AskedAnswer, form: AnswerFormat
) -> Response:
    """Answer whole or as a stream, for as long as the client is there.

    Raises:
        KvregError: The request is refused, or failed before its response began.
        ClientDisconnect: The client left before that.
    """
    run = AnswerRun(context, asked, form, tenant_of(request).name, _trace_parent_of(request))
    is_handed_over = False
    try:
        await run_while_connected(request.receive, run.start())
        if asked.is_streamed:
            is_handed_over = True
            return EventStreamResponse(run.stream(), on_close=run.aclose, headers=form.headers)
        content = await run_while_connected(request.receive, run.finish())
        return JSONResponse(content, headers=dict(form.headers))
    finally:
        if not is_handed_over:
            await run.aclose()


def _trace_parent_of(request: Request) -> str | None:
    """The caller's place in a trace. Whoever sends two of them is nowhere in particular."""
    headers = request.headers.getlist("traceparent")
    return headers[0] if len(headers) == 1 else None
