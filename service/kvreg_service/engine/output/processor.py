"""From sampled tokens to the readers of answers: detokenization, streams, delivery.

Owns the output streams of all requests in flight. It decides nothing about the requests: a stop
string that a text completes is reported to the scheduler, which ends the request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.output.detokenizer import IncrementalDetokenizer
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core import events
from kvreg_service.core.errors import KvregError, wrap_failure
from kvreg_service.core.ids import RequestId
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import StepResult
from kvreg_service.engine.interface.generation import GenerationRequest
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.engine.output.delivery import Delivery
from kvreg_service.engine.output.stream import OutputEvent, OutputStream
from kvreg_service.engine.reporting.observers import Observers

_logger = logging.getLogger(__name__)


class OutputProcessor:
    """Feeds the output streams of one engine.

    Streams are opened on the event loop and added under the engine's lock. Everything else is
    called on the step loop's thread.
    """

    def __init__(self, tokenizer: Tokenizer, echo: EchoIndex, observers: Observers) -> None:
        self._tokenizer = tokenizer
        self._echo = echo
        self._observers = observers
        self._streams: dict[RequestId, OutputStream] = {}
        self._finished: list[OutputStream] = []
        self._delivery: Delivery[OutputEvent] = Delivery()

    def open(self, generation: GenerationRequest, request: Request) -> OutputStream:
        """Return a stream for one request. It receives nothing until it is added."""
        detokenizer = IncrementalDetokenizer(self._tokenizer, generation.stop)
        return OutputStream(generation, request, detokenizer, self._delivery)

    def add(self, stream: OutputStream) -> None:
        """Feed a stream from now on, until its request ends."""
        self._streams[stream.request.request_id] = stream

    def __contains__(self, request_id: RequestId) -> bool:
        """Whether a request of this id is in flight."""
        return request_id in self._streams

    def decode(self, result: StepResult) -> None:
        """Detokenize the tokens of a step, before they are committed.

        Effects: requests whose text completed a stop string are added to ``result.stopped``, and
        those whose token cannot be decoded to ``result.failed``.
        """
        for request_id, token in result.sampled.items():
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            try:
                if stream.decode(token, result.logprobs.get(request_id)):
                    result.stopped.add(request_id)
            except Exception as error:  # noqa: BLE001 - it fails the request of this token alone
                result.failed[request_id] = wrap_failure("detokenizing", error)

    def process(
        self, happened: Iterable[events.Event], attach_s: float = 0.0
    ) -> dict[RequestId, RequestRecord]:
        """Apply the scheduler's events to their streams.

        Args:
            happened: the events of one step, or of one cancellation.
            attach_s: how long copying the state that the step's admission resumes took.

        Returns:
            The records of the requests that ended; their streams are no longer fed.
        """
        ended: dict[RequestId, RequestRecord] = {}
        for event in happened:
            match event:
                case events.TokenSampled():
                    self._commit_token(event)
                    continue
                case events.Admitted():
                    self._streams[event.request_id].admit(event.admission, attach_s)
                    continue
                case events.StateKept():
                    self._streams[event.request_id].kept_at.append(event.position)
                    continue
                case events.Finished():
                    self._finish(event)
                case events.Failed():
                    self._streams[event.request_id].fail(event.error)
                case events.Cancelled():
                    self._streams[event.request_id].cancel()
                case _:
                    continue
            ended[event.request_id] = self._streams.pop(event.request_id).record(event)
        return ended

    def fail_all(self, error: KvregError) -> None:
        """End all streams with an error."""
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()

    def deliver_due(self) -> None:
        """Hand events and text to their readers, unless the text may wait for more."""
        if self._delivery.is_due(time.monotonic()):
            self.deliver()

    def deliver(self) -> None:
        """Hand all events and all text to their readers."""
        # A copy in one operation: requests are added meanwhile, on the event loop's thread.
        for stream in list(self._streams.values()):
            stream.send_text()
        # Before the reader sees the end: its next turn may follow at once.
        if self._finished:
            self._record_echoes()
        self._delivery.flush(time.monotonic())

    def _commit_token(self, event: events.TokenSampled) -> None:
        stream = self._streams[event.request_id]
        interval_s = stream.commit_token()
        if interval_s is not None:
            self._observers.token_followed(interval_s)
        # Readers tell tokens of reasoning from others by the delta they came in.
        if self._tokenizer.is_added(event.token):
            stream.send_text()

    def _finish(self, event: events.Finished) -> None:
        stream = self._streams[event.request_id]
        try:
            stream.finish(event)
            self._finished.append(stream)
        except Exception as error:  # noqa: BLE001 - it fails this request alone
            stream.fail(wrap_failure("finishing an answer", error))

    def _record_echoes(self) -> None:
        """Index the tokens of finished answers, for prompts that echo their text.

        Takes a while for a long answer, so it is called without the lock.
        """
        for stream in self._finished:
            try:
                output = stream.output_ids
                if output and output[-1] in stream.request.stop_token_ids:
                    output = output[:-1]
                generation = stream.generation
                self._echo.record(generation.prompt.token_ids, output, generation.tenant)
            except Exception:
                # Its echo is tokenized again then, and may reuse less.
                _logger.exception("the tokens of an answer are not indexed for its echo")
        self._finished.clear()
