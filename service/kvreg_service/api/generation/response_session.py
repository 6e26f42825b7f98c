"""One response, from its parameters to its last byte, for either API.

Owns the engine's generator of the request. Closing a `ResponseSession` cancels its request and
writes the request's access log line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from kvreg_service.api.errors import shape_of
from kvreg_service.api.generation.access_log import log_request
from kvreg_service.api.generation.context import ApiContext
from kvreg_service.api.generation.output import GenerationOutput, OutputPart
from kvreg_service.api.generation.params import GenerationParams
from kvreg_service.api.generation.response_encoder import ResponseEncoder
from kvreg_service.chat.prompt.builder import ChatPrompt
from kvreg_service.core.errors import InvariantBroken, KvregError
from kvreg_service.engine.interface.generation import GenerationEvent, GenerationRequest

_logger = logging.getLogger(__name__)


class ResponseSession:
    """One request: call ``start``, then ``finish`` or ``stream``, and always ``aclose``."""

    def __init__(
        self,
        context: ApiContext,
        params: GenerationParams,
        encoder: ResponseEncoder,
        tenant: str,
        trace_parent: str | None,
    ) -> None:
        self._context = context
        self._params = params
        self._encoder = encoder
        self._tenant = tenant
        self._trace_parent = trace_parent
        self._arrival_s = time.monotonic()
        self._events: AsyncGenerator[GenerationEvent, None] | None = None
        self._prompt: ChatPrompt | None = None
        self._output: GenerationOutput | None = None
        self._error: Exception | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Build the prompt, submit the request and wait until the prompt is computed.

        Raises:
            KvregError: The request is refused, or failed during the prefill.
        """
        try:
            context, params = self._context, self._params
            context.require_token_ids(params.sampling)
            self._prompt = await context.build_prompt(params.conversation, self._tenant)
            self._output = GenerationOutput(
                starts_in_reasoning=self._prompt.starts_in_reasoning,
                tools=(params.conversation.tools or ()) if params.parses_tool_calls else (),
            )
            self._events = context.engine.generate(
                GenerationRequest(
                    request_id=self._encoder.request_id,
                    prompt=self._prompt,
                    max_tokens=params.max_tokens,
                    sampling=params.sampling,
                    stop=params.stop,
                    tenant=self._tenant,
                    cache_policy=params.cache_policy,
                    trace_parent=self._trace_parent,
                )
            )
            await self._next_parts(self._output)
        except Exception as err:
            self._error = err
            raise

    async def finish(self) -> dict[str, Any]:
        """Wait for the rest of the output and return the whole body.

        Raises:
            KvregError: The request failed.
        """
        output = self._require_started()
        try:
            while output.finished is None:
                await self._next_parts(output)
        except Exception as err:
            self._error = err
            raise
        return self._encoder.encode_body(output)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events of the output. An error becomes the last event."""
        output, encoder = self._require_started(), self._encoder
        for event in encoder.encode_start(output):
            yield event
        sent_s = time.monotonic()
        try:
            while output.finished is None:
                parts = await self._next_parts(output)
                for part in parts:
                    for event in encoder.encode_part(part):
                        yield event
                now_s = time.monotonic()
                if parts:
                    sent_s = now_s
                elif now_s - sent_s >= self._context.keep_alive_s:
                    # A tool call is sent only when it is complete, so there may be nothing to send.
                    yield encoder.keep_alive
                    sent_s = now_s
        except Exception as err:
            self._error = err
            if not isinstance(err, KvregError) or shape_of(err).status == 500:
                _logger.exception("streamed request failed")
            yield encoder.encode_error(err)
            return
        for event in encoder.encode_end(output):
            yield event

    async def aclose(self) -> None:
        """Cancel the request if it still runs, and write the access log line. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._events is not None:
                await self._events.aclose()
        finally:
            log_request(
                request_id=self._encoder.request_id,
                is_streamed=self._params.is_streamed,
                output=self._output,
                error=self._error,
                total_s=time.monotonic() - self._arrival_s,
            )

    def _require_started(self) -> GenerationOutput:
        assert self._output is not None, "call start first"
        return self._output

    async def _next_parts(self, output: GenerationOutput) -> list[OutputPart]:
        assert self._events is not None, "call start first"
        try:
            parts = output.push(await anext(self._events))
        except StopAsyncIteration:
            raise InvariantBroken(
                f"request {self._encoder.request_id} ended without a terminal event"
            ) from None
        if output.finished is not None and output.calls and self._prompt is not None:
            # Remembered before the client can echo the call.
            self._context.prompt_builder.remember(self._prompt, output.generated_answer())
        return parts
