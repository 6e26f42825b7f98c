"""Samples finished requests and exports their spans to a collector in a background thread.

Owns the queue between the engine and that thread, and the ids of spans. Spans that cannot be
exported are counted, and logged once a minute. `request_spans` owns the content of a span. This
module needs the extra ``otlp``; `factory` checks that.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.status import Status, StatusCode

from kvreg_service.core.events import Event
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.tracing.request_spans import (
    SCHEMA_URL,
    SpanDraft,
    SpanResult,
    TraceDraft,
    draft_trace,
)

_logger = logging.getLogger(__name__)

SpanCount = Callable[[SpanResult, int], None]

# About half a megabyte, also while the collector is down.
MAX_WAITING_REQUESTS = 1024
# The batch size of OpenTelemetry's own processors, about a hundred requests.
_BATCH_SPANS = 512
_INTERVAL_S = 1.0
_SEND_TIMEOUT_S = 5.0
_LAST_WORD_S = 0.5
_WARNING_INTERVAL_S = 60.0
# The limit of the specification for future versions; longer headers are ignored.
_MAX_TRACE_PARENT_CHARACTERS = 512

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


@dataclass(frozen=True)
class _Sampled:
    """The spans of a sampled request, with their trace id and parent."""

    draft: TraceDraft
    trace_id: int
    parent: SpanContext | None


class SpanSender:
    """Exports spans. Implements `engine.interface.observer.Observer`; its callbacks do not block.

    The sampling decision of the caller applies; without one, requests are sampled at ``ratio``.
    ``count`` is called once for each sampled span, from either thread. The creator closes it.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        model: str,
        ratio: float,
        resource: Mapping[str, str],
        count: SpanCount,
    ) -> None:
        self._exporter = exporter
        self._model = model
        self._sampler = ParentBased(root=TraceIdRatioBased(ratio))
        self._resource = Resource(dict(resource))
        self._scope = InstrumentationScope("kvreg", schema_url=SCHEMA_URL)
        self._count = count
        self._ids = RandomIdGenerator()
        self._propagator = TraceContextTextMapPropagator()
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        self._waiting: queue.Queue[_Sampled] = queue.Queue(MAX_WAITING_REQUESTS)
        self._is_ending = threading.Event()
        self._reasons = _LastReason()
        self._warned_s = -_WARNING_INTERVAL_S
        self._num_lost_untold = 0
        self._thread = threading.Thread(target=self._run, name="kvreg-traces", daemon=True)
        self._thread.start()

    def request_ended(self, record: RequestRecord) -> None:
        """Queue the spans of a sampled request; if the queue is full, drop and count them."""
        draft = draft_trace(record, self._model)
        sampled = self._sample(draft)
        if sampled is None:
            return
        try:
            self._waiting.put_nowait(sampled)
        except queue.Full:
            self._count("dropped", draft.num_spans)

    def registry_changed(self, event: Event) -> None:
        """Spans are of requests only."""

    def state_copied(self, seconds: float) -> None:
        """Spans are of requests only."""

    def token_followed(self, gap_s: float) -> None:
        """Spans are of requests only."""

    def close(self, timeout_s: float) -> None:
        """Export the queued spans for at most about ``timeout_s``, and drop the rest."""
        self._is_ending.set()
        self._thread.join(timeout_s)
        # Ends the pause before a retry. An attempt on a dead connection outlives this call.
        self._exporter.shutdown()
        self._thread.join(_LAST_WORD_S)
        self._drop_waiting()
        self._reasons.remove()
        if self._num_lost_untold:
            self._tell_lost()

    def _sample(self, draft: TraceDraft) -> _Sampled | None:
        context = self._context_of(draft.trace_parent)
        parent: SpanContext | None = get_current_span(context).get_span_context()
        if parent is None or not parent.is_valid:
            parent = None
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        result = self._sampler.should_sample(context, trace_id, draft.whole.name)
        return (
            _Sampled(draft, trace_id, parent)
            if result.decision is Decision.RECORD_AND_SAMPLE
            else None
        )

    def _context_of(self, trace_parent: str | None) -> Context:
        if trace_parent is None or len(trace_parent) > _MAX_TRACE_PARENT_CHARACTERS:
            return Context()
        return self._propagator.extract({"traceparent": trace_parent}, Context())

    def _run(self) -> None:
        while not self._is_ending.wait(_INTERVAL_S):
            self._send_waiting()
        self._send_waiting()

    def _send_waiting(self) -> None:
        while spans := self._take_batch():
            self._send(spans)

    def _take_batch(self) -> list[ReadableSpan]:
        spans: list[ReadableSpan] = []
        while len(spans) < _BATCH_SPANS:
            try:
                spans += self._build(self._waiting.get_nowait())
            except queue.Empty:
                break
        return spans

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        try:
            is_sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            _logger.exception("spans could not be sent")
            is_sent = False
        self._count("exported" if is_sent else "dropped", len(spans))
        if not is_sent:
            self._warn(len(spans))

    def _drop_waiting(self) -> None:
        while True:
            try:
                sampled = self._waiting.get_nowait()
            except queue.Empty:
                return
            self._count("dropped", sampled.draft.num_spans)
            self._num_lost_untold += sampled.draft.num_spans

    def _warn(self, num_spans: int) -> None:
        self._num_lost_untold += num_spans
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARNING_INTERVAL_S:
            self._warned_s = now_s
            self._tell_lost()

    def _tell_lost(self) -> None:
        fields = {"num_spans": self._num_lost_untold, "reason": self._reasons.last}
        self._num_lost_untold = 0
        _logger.warning("spans could not be sent and are dropped", extra=fields)

    def _build(self, sampled: _Sampled) -> list[ReadableSpan]:
        draft = sampled.draft
        whole = self._identity(sampled.trace_id)
        is_failed = draft.error_code is not None
        status = Status(StatusCode.ERROR, draft.error_code) if is_failed else Status()
        spans = [self._span(draft.whole, whole, sampled.parent, SpanKind.SERVER, status)]
        for part in draft.parts:
            identity = self._identity(sampled.trace_id)
            spans.append(self._span(part, identity, whole, SpanKind.INTERNAL, Status()))
        return spans

    def _identity(self, trace_id: int) -> SpanContext:
        span_id = self._ids.generate_span_id()
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)

    def _span(
        self,
        draft: SpanDraft,
        identity: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        status: Status,
    ) -> ReadableSpan:
        # Built directly: the provider of a tracer reads the environment, and a tracer creates open
        # spans, while these have already ended.
        return ReadableSpan(
            draft.name,
            context=identity,
            parent=parent,
            resource=self._resource,
            attributes=dict(draft.attributes),
            kind=kind,
            status=status,
            start_time=self._epoch_ns + round(draft.start_s * 1e9),
            end_time=self._epoch_ns + round(draft.end_s * 1e9),
            instrumentation_scope=self._scope,
        )


def build_exporter(endpoint: str) -> SpanExporter:
    """Build the exporter to the base URL of a collector.

    The package itself reads ``OTEL_EXPORTER_OTLP_HEADERS`` and the variables for certificates;
    arguments given here take precedence over its other variables.
    """
    return OTLPSpanExporter(
        endpoint=f"{endpoint.rstrip('/')}/v1/traces",
        timeout=_SEND_TIMEOUT_S,
        compression=Compression.NoCompression,
    )


class _LastReason(logging.Filter):
    """Suppresses the log of the exporter and keeps its last error, for one line a minute."""

    _EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

    def __init__(self) -> None:
        super().__init__()
        self.last: str | None = None
        logging.getLogger(self._EXPORTER).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the message and suppress the record."""
        # The error after the last retry has no reason; the warnings before it do.
        if record.levelno < logging.ERROR or "reason" in record.getMessage():
            self.last = record.getMessage()
        return False

    def remove(self) -> None:
        """Restore the log of the exporter."""
        logging.getLogger(self._EXPORTER).removeFilter(self)
