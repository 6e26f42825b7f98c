"""The output of one request: sampled tokens become text, and text reaches the task that reads it.

Owns the queue between the step loop's thread and the reader, the text that is not sent yet, and the
times of the request. It never blocks the step loop: a slow reader only makes its own queue longer,
by at most ``max_tokens`` events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from kvreg_service.chat.output.detokenizer import IncrementalDetokenizer
from kvreg_service.core import events
from kvreg_service.core.errors import KvregError
from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.request import Admission, Request
from kvreg_service.core.requests.sampling_params import TokenLogprobs
from kvreg_service.engine.interface.generation import (
    Finished,
    GenerationEvent,
    GenerationRequest,
    SpelledToken,
    Started,
    TextDelta,
    Timings,
    TokenReport,
)
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.engine.output.delivery import Delivery

_logger = logging.getLogger(__name__)

OutputEvent = GenerationEvent | KvregError


class OutputStream:
    """Created on the event loop. Everything but `read` is called on the step loop's thread.

    What is sent reaches the reader when ``delivery`` is flushed.
    """

    def __init__(
        self,
        generation: GenerationRequest,
        request: Request,
        detokenizer: IncrementalDetokenizer,
        delivery: Delivery[OutputEvent],
    ) -> None:
        self.generation = generation
        self.request = request
        self.output_ids: list[int] = []
        self.kept_at: list[int] = []
        self.has_ended = False
        self._detokenizer = detokenizer
        self._pending_text = ""
        self._num_pending_tokens = 0
        self._pending_reports: list[TokenReport] = []
        self._delivery = delivery
        self._last_token_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[OutputEvent] = asyncio.Queue()
        self._admission: Admission | None = None
        self._admitted_s = 0.0
        self._attach_s = 0.0
        self._first_token_s: float | None = None

    async def read(self) -> AsyncIterator[GenerationEvent]:
        """Yield the events as they come, up to and with the last one.

        Raises:
            KvregError: the request failed.
        """
        while True:
            event = await self._queue.get()
            if isinstance(event, KvregError):
                raise event
            yield event
            if isinstance(event, Finished):
                return

    def admit(self, admission: Admission, attach_s: float) -> None:
        """Note that the request has a lane. The reader learns of it with the first token."""
        self._admission = admission
        # The event arrives with the step's end; the clock of the prefill started with the plan.
        self._admitted_s = self.request.arrival_s + admission.queue_s
        self._attach_s = attach_s

    def decode(self, token: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Detokenize a sampled token before it is committed.

        Returns:
            Whether its text completed a stop string.
        """
        self.output_ids.append(token)
        if token in self.request.stop_token_ids:
            return False
        if logprobs is not None:
            self._pending_reports.append(self._report(logprobs))
        decoded = self._detokenizer.push(token)
        self._pending_text += decoded.text
        return decoded.is_stopped

    def commit_token(self) -> float | None:
        """Count the token that was decoded last. The first one starts the answer.

        Returns:
            The seconds since the token before; None for the first one.
        """
        self._num_pending_tokens += 1
        now_s, last_s = time.monotonic(), self._last_token_s
        self._last_token_s = now_s
        if self._first_token_s is None and self._admission is not None:
            self._first_token_s = now_s
            self._send(Started(self._admission))
        return now_s - last_s if last_s is not None else None

    def send_text(self) -> None:
        """Send the text of all tokens since the last time."""
        if self._num_pending_tokens or self._pending_text:
            reports = tuple(self._pending_reports)
            self._send(TextDelta(self._pending_text, self._num_pending_tokens, reports))
            self._pending_text = ""
            self._num_pending_tokens = 0
            self._pending_reports.clear()

    def finish(self, event: events.Finished) -> None:
        """Send the rest of the text and the last event."""
        self._pending_text += self._detokenizer.flush()
        self.send_text()
        self._send(
            Finished(
                event.reason,
                event.completion_tokens,
                self._timings(),
                stop_string=self._detokenizer.stopped_by,
            )
        )
        self.has_ended = True

    def fail(self, error: KvregError) -> None:
        """Send the text so far, then the error as the last event."""
        try:
            self.send_text()
        except Exception:
            # The reader waits for the last event, with or without this text.
            _logger.exception("the last text of a failed answer is lost")
        self._send(error)
        self.has_ended = True

    def cancel(self) -> None:
        """End without an event: nothing is read any more."""
        self.has_ended = True

    def record(self, end: events.Terminal) -> RequestRecord:
        """Return the record of the request, which has just ended."""
        generation, request = self.generation, self.request
        heads = generation.prompt.heads
        admitted_s = self._admitted_s if self._admission is not None else None
        return RequestRecord(
            request_id=request.request_id,
            tenant=generation.tenant,
            session=generation.prompt.session,
            outcome=end.outcome,
            error_code=end.error.code if isinstance(end, events.Failed) else None,
            finish_reason=end.reason if isinstance(end, events.Finished) else None,
            tail=generation.prompt.tail,
            prompt=request.prompt,
            output_ids=tuple(self.output_ids),
            max_tokens=request.max_tokens,
            heads=tuple(head.num_tokens for head in heads),
            cache_policy=request.cache_policy,
            admission=self._admission,
            arrived_at_s=request.arrival_s,
            admitted_at_s=admitted_s,
            prepared_at_s=admitted_s + self._attach_s if admitted_s is not None else None,
            first_token_at_s=self._first_token_s,
            ended_at_s=time.monotonic(),
            boundary_kind=(
                StateKind.RESPONSE if generation.prompt.is_continuation else StateKind.TURN
            ),
            turn_boundary=generation.prompt.boundary.turn,
            round_boundary=generation.prompt.boundary.round,
            message_boundary=generation.prompt.boundary.message,
            marked_heads=tuple(head.num_tokens for head in heads if head.is_marked),
            kept_at=tuple(self.kept_at),
            trace_parent=generation.trace_parent,
        )

    def _report(self, logprobs: TokenLogprobs) -> TokenReport:
        token_bytes = self._detokenizer.token_bytes
        return TokenReport(
            SpelledToken(token_bytes(logprobs.token_id), logprobs.logprob),
            tuple(SpelledToken(token_bytes(token), logprob) for token, logprob in logprobs.top),
        )

    def _timings(self) -> Timings:
        arrival_s = self.request.arrival_s
        first_s = self._first_token_s if self._first_token_s is not None else self._admitted_s
        return Timings(
            queue_s=self._admitted_s - arrival_s,
            attach_s=self._attach_s,
            prefill_s=max(0.0, first_s - self._admitted_s - self._attach_s),
            decode_s=time.monotonic() - first_s,
            ttft_s=first_s - arrival_s,
        )

    def _send(self, event: OutputEvent) -> None:
        self._delivery.put(self._loop, self._queue, event)
