"""The life of one answer between its route and the engine, whichever API it is written for.

Owns the engine's generator for this request: whoever made an ``AnswerRun`` closes it, and closing
cancels what still runs and writes the request's one log line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from kvreg_service.api.errors import shape_of
from kvreg_service.api.generation.access_log import log_request
from kvreg_service.api.generation.context import ApiContext
from kvreg_service.api.generation.output import ChatAnswer, Piece
from kvreg_service.api.generation.params import AskedAnswer
from kvreg_service.api.generation.response_encoder import AnswerFormat
from kvreg_service.chat.prompt.builder import ChatPrompt
from kvreg_service.core.errors import InvariantBroken, KvregError
from kvreg_service.engine.interface import GenerationEvent, GenerationRequest

_logger = logging.getLogger(__name__)


class AnswerRun:
    """One request: ``start``, then either ``finish`` or ``stream``, and always ``aclose``."""

    def __init__(
        self,
        context: ApiContext,
        asked: AskedAnswer,
        form: AnswerFormat,
        tenant: str,
        trace_parent: str | None,
    ) -> None:
        self._tenant = tenant
        self._trace_parent = trace_parent
        self._context = context
        self._asked = asked
        self._form = form
        self._arrival_s = time.monotonic()
        self._events: AsyncGenerator[GenerationEvent, None] | None = None
        self._prompt: ChatPrompt | None = None
        self._answer: ChatAnswer | None = None
        self._error: Exception | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Build the prompt, hand it to the engine and wait until the prompt is computed.

        Raises:
            KvregError: The request is refused or failed; nothing of it runs any more.
        """
        try:
            context, asked = self._context, self._asked
            context.require_token_ids(asked.sampling)
            self._prompt = await context.build_prompt(asked.conversation, self._tenant)
            self._answer = ChatAnswer(
                starts_in_reasoning=self._prompt.starts_in_reasoning,
                tools=(asked.conversation.tools or ()) if asked.parses_tool_calls else (),
            )
            self._events = context.engine.generate(
                GenerationRequest(
                    request_id=self._form.request_id,
                    prompt=self._prompt,
                    max_tokens=asked.max_tokens,
                    sampling=asked.sampling,
                    stop=asked.stop,
                    retain=asked.retain,
                    may_reuse=asked.may_reuse,
                    tenant=self._tenant,
                    priority=asked.priority,
                    ttl_s=asked.ttl_s,
                    trace_parent=self._trace_parent,
                )
            )
            await self._take_next(self._answer)
        except Exception as err:
            self._error = err
            raise

    async def finish(self) -> dict[str, Any]:
        """Wait for the rest of the answer and return the whole body.

        Raises:
            KvregError: The request failed on the way.
        """
        answer = self._begun()
        try:
            while answer.finished is None:
                await self._take_next(answer)
        except Exception as err:
            self._error = err
            raise
        return self._form.whole(answer)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events of the answer. A failure becomes the last of them."""
        answer, form = self._begun(), self._form
        for event in form.opening(answer):
            yield event
        sent_s = time.monotonic()
        try:
            while answer.finished is None:
                pieces = await self._take_next(answer)
                for piece in pieces:
                    for event in form.more(piece):
                        yield event
                now_s = time.monotonic()
                if pieces:
                    sent_s = now_s
                elif now_s - sent_s >= self._context.keep_alive_s:
                    # A long call is sent when it is whole; until then nothing else would be.
                    yield form.keep_alive
                    sent_s = now_s
        except Exception as err:
            self._error = err
            if not isinstance(err, KvregError) or shape_of(err).status == 500:
                _logger.exception("a streamed request failed")
            yield form.failure(err)
            return
        for event in form.closing(answer):
            yield event

    async def aclose(self) -> None:
        """Cancel what still runs and write the log line. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._events is not None:
                await self._events.aclose()
        finally:
            log_request(
                request_id=self._form.request_id,
                is_streamed=self._asked.is_streamed,
                answer=self._answer,
                error=self._error,
                total_s=time.monotonic() - self._arrival_s,
            )

    def _begun(self) -> ChatAnswer:
        assert self._answer is not None, "start comes first"
        return self._answer

    async def _take_next(self, answer: ChatAnswer) -> list[Piece]:
        assert self._events is not None, "start comes first"
        try:
            pieces = answer.push(await anext(self._events))
        except StopAsyncIteration:
            raise InvariantBroken(
                f"request {self._form.request_id} ended without a terminal event"
            ) from None
        if answer.finished is not None and answer.calls and self._prompt is not None:
            # Before the client can send it back.
            self._context.prompt_builder.remember(self._prompt, answer.spelled())
        return pieces
