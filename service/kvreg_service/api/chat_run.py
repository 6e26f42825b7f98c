"""The life of one chat request between its route and the engine.

Owns the engine's generator for this request: whoever made a ``ChatRun`` closes it, and closing
cancels what still runs and writes the request's one log line.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from kvreg_service.api.chat_answer import ChatAnswer, Piece
from kvreg_service.api.chat_request import ChatRequest
from kvreg_service.api.chat_response import ChunkFormat, whole_answer
from kvreg_service.api.context import ApiContext
from kvreg_service.api.errors import body_of, shape_of
from kvreg_service.api.event_stream import DONE, sse_data, sse_error
from kvreg_service.api.request_log import log_request
from kvreg_service.core.errors import InvariantBroken, KvregError
from kvreg_service.engine.interface import GenerationEvent, GenerationRequest

_logger = logging.getLogger(__name__)


class ChatRun:
    """One request: ``start``, then either ``finish`` or ``stream``, and always ``aclose``."""

    def __init__(self, context: ApiContext, body: ChatRequest) -> None:
        self.request_id = f"chatcmpl-{uuid.uuid4().hex}"
        self._context = context
        self._body = body
        self._created_s = int(time.time())
        self._arrival_s = time.monotonic()
        self._events: AsyncGenerator[GenerationEvent, None] | None = None
        self._answer: ChatAnswer | None = None
        self._error: Exception | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Build the prompt, hand it to the engine and wait until the prompt is computed.

        Raises:
            KvregError: The request is refused or failed; nothing of it runs any more.
        """
        try:
            context, body = self._context, self._body
            sampling = body.sampling(context.sampling_defaults)
            context.require_token_ids(sampling)
            prompt = await context.build_prompt(body.conversation())
            self._answer = ChatAnswer(starts_in_reasoning=prompt.starts_in_reasoning)
            self._events = context.engine.generate(
                GenerationRequest(
                    request_id=self.request_id,
                    prompt=prompt,
                    max_tokens=body.token_limit,
                    sampling=sampling,
                    stop=body.stop_strings,
                    retain=body.retains,
                    priority=body.priority or 0,
                    ttl_s=body.cache_ttl_s,
                )
            )
            await self._take_next(self._answer, self._events)
        except Exception as err:
            self._error = err
            raise

    async def finish(self) -> dict[str, Any]:
        """Wait for the rest of the answer and return the whole body.

        Raises:
            KvregError: The request failed on the way.
        """
        answer, events = self._begun()
        try:
            while answer.finished is None:
                await self._take_next(answer, events)
        except Exception as err:
            self._error = err
            raise
        return whole_answer(
            answer,
            request_id=self.request_id,
            created_s=self._created_s,
            model=self._context.model_id,
        )

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events of the answer. A failure becomes the last of them."""
        answer, events = self._begun()
        chunks = ChunkFormat(
            self.request_id, self._created_s, self._context.model_id, self._body.includes_usage
        )
        yield sse_data(chunks.opening())
        try:
            while answer.finished is None:
                for piece in await self._take_next(answer, events):
                    yield sse_data(chunks.text(piece))
        except Exception as err:
            self._error = err
            if not isinstance(err, KvregError) or shape_of(err).status == 500:
                _logger.exception("a streamed request failed")
            yield sse_error(body_of(err))
            return
        for chunk in chunks.closing(answer):
            yield sse_data(chunk)
        yield DONE

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
                request_id=self.request_id,
                is_streamed=bool(self._body.stream),
                answer=self._answer,
                error=self._error,
                total_s=time.monotonic() - self._arrival_s,
            )

    def _begun(self) -> tuple[ChatAnswer, AsyncGenerator[GenerationEvent, None]]:
        assert self._answer is not None, "start comes first"
        assert self._events is not None, "start comes first"
        return self._answer, self._events

    async def _take_next(
        self, answer: ChatAnswer, events: AsyncGenerator[GenerationEvent, None]
    ) -> list[Piece]:
        try:
            return answer.push(await anext(events))
        except StopAsyncIteration:
            raise InvariantBroken(
                f"request {self.request_id} ended without a terminal event"
            ) from None
