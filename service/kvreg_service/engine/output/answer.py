"""One answer on its way from the step loop's thread to the task that waits for it.

Owns the answer's queue, its text and its clock. It never blocks the step loop: a slow reader only
makes its own queue longer, by at most ``max_tokens`` events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from kvreg_service.chat.output.detokenizer import IncrementalDetokenizer
from kvreg_service.core import events
from kvreg_service.core.errors import KvregError
from kvreg_service.core.request import Admission, Request
from kvreg_service.core.sampling_params import TokenLogprobs
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

AnswerEvent = GenerationEvent | KvregError


class Answer:
    """Built on the event loop; everything but `stream` is called on the step loop's thread.

    What is sent reaches the reader when ``delivery`` is flushed.
    """

    def __init__(
        self,
        asked: GenerationRequest,
        request: Request,
        text: IncrementalDetokenizer,
        delivery: Delivery[AnswerEvent],
    ) -> None:
        self.asked = asked
        self.request = request
        self.output_ids: list[int] = []
        self.has_ended = False
        self._text = text
        self._pending_text = ""
        self._num_pending_tokens = 0
        self._pending_reports: list[TokenReport] = []
        self._delivery = delivery
        self._last_token_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[AnswerEvent] = asyncio.Queue()
        self.admission: Admission | None = None
        """How the request got its lane; None while it has none."""
        self._admitted_s = 0.0
        self._attach_s = 0.0
        self._first_token_s: float | None = None

    async def stream(self) -> AsyncIterator[GenerationEvent]:
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
        """Note where the request runs; the reader hears of it with the first token."""
        self.admission = admission
        # The event arrives with the step's end; the clock of the prefill started with the plan.
        self._admitted_s = self.request.arrival_s + admission.queue_s
        self._attach_s = attach_s

    def read_token(self, token: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Decode a sampled token before it is committed; return whether a stop string ended it."""
        self.output_ids.append(token)
        if token in self.request.stop_token_ids:
            return False
        if logprobs is not None:
            self._pending_reports.append(self._report(logprobs))
        step = self._text.push(token)
        self._pending_text += step.text
        return step.is_stopped

    def take_token(self) -> float | None:
        """Count the token that was read last; with the first one, tell the reader of the start.

        Returns:
            The seconds since the token before; None for the first one.
        """
        self._num_pending_tokens += 1
        now_s, last_s = time.monotonic(), self._last_token_s
        self._last_token_s = now_s
        if self._first_token_s is None and self.admission is not None:
            self._first_token_s = now_s
            self._send(Started(self.admission))
        return now_s - last_s if last_s is not None else None

    def send_text(self) -> None:
        """Tell the reader of all tokens since the last time."""
        if self._num_pending_tokens or self._pending_text:
            reports = tuple(self._pending_reports)
            self._send(TextDelta(self._pending_text, self._num_pending_tokens, reports))
            self._pending_text = ""
            self._num_pending_tokens = 0
            self._pending_reports.clear()

    def finish(self, event: events.Finished) -> None:
        """Tell the reader that the answer is complete."""
        self._pending_text += self._text.flush()
        self.send_text()
        self._send(
            Finished(
                event.reason,
                event.completion_tokens,
                self._timings(),
                stop_string=self._text.stopped_by,
            )
        )
        self.has_ended = True

    def fail(self, error: KvregError) -> None:
        """Tell the reader that there will be no more."""
        try:
            self.send_text()
        except Exception:
            # The reader must hear of the end, if of nothing else.
            _logger.exception("the last text of a failed answer is lost")
        self._send(error)
        self.has_ended = True

    def end_silently(self) -> None:
        """Note that the reader has left."""
        self.has_ended = True

    def record(self, end: events.Terminal) -> RequestRecord:
        """Return what is to be told of the request once it has ended."""
        asked, request = self.asked, self.request
        admitted_s = self._admitted_s if self.admission is not None else None
        return RequestRecord(
            request_id=request.request_id,
            tenant=asked.tenant,
            session=asked.prompt.session,
            outcome=end.outcome,
            error_code=end.error.code if isinstance(end, events.Failed) else None,
            finish_reason=end.reason if isinstance(end, events.Finished) else None,
            tail=asked.prompt.tail,
            prompt=request.prompt,
            output_ids=tuple(self.output_ids),
            max_tokens=request.max_tokens,
            boundary=request.boundary,
            heads=tuple(head.num_tokens for head in request.heads),
            cache_policy=request.cache_policy,
            admission=self.admission,
            arrived_at_s=request.arrival_s,
            admitted_at_s=admitted_s,
            prepared_at_s=admitted_s + self._attach_s if admitted_s is not None else None,
            first_token_at_s=self._first_token_s,
            ended_at_s=time.monotonic(),
            boundary_kind=request.boundary_kind,
            turn_boundary=asked.prompt.boundary.turn,
            round_boundary=asked.prompt.boundary.round,
            marked_heads=tuple(head.num_tokens for head in request.heads if head.is_marked),
            trace_parent=asked.trace_parent,
        )

    def _report(self, logprobs: TokenLogprobs) -> TokenReport:
        spell = self._text.token_bytes
        return TokenReport(
            SpelledToken(spell(logprobs.token_id), logprobs.logprob),
            tuple(SpelledToken(spell(token), logprob) for token, logprob in logprobs.top),
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

    def _send(self, event: AnswerEvent) -> None:
        self._delivery.put(self._loop, self._queue, event)
