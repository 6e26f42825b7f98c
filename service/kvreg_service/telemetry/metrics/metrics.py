"""The counters and histograms of the engine, the API and the telemetry itself.

Owns names, labels and buckets; docs/metrics.md documents them. `engine_gauges` has the gauges, and
`exposition` the text format. All children exist from the start, so that the rate of an event that
has never happened is 0, not absent. No label identifies a tenant, a session or a request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from kvreg_service.core import errors, events
from kvreg_service.core.events import Event
from kvreg_service.core.labels import Attach, EvictionReason, Outcome, ReusePath, StateKind, Tail
from kvreg_service.core.requests.request import Admission
from kvreg_service.engine.interface.protocol import EngineProtocol
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.metrics.engine_gauges import EngineGauges
from kvreg_service.telemetry.request_log.request_log import LogLoss
from kvreg_service.telemetry.tracing.request_spans import SpanResult

FAILURES = (
    errors.QueueTimeout,
    errors.RequestFailed,
    errors.OutOfPages,
    errors.CurrentSlotDropped,
    errors.InvariantBroken,
)
"""Errors that can occur only after the engine has accepted a request."""

# Reuse path and attach of a request.
_NEVER_STARTED = ("none", "none")
_ADMISSIONS = (
    (ReusePath.FULL_RESET, Attach.NONE),
    (ReusePath.APPEND_FRONTIER, Attach.NONE),
    (ReusePath.APPEND_FRONTIER, Attach.REGISTRY),
    (ReusePath.RESTORE_TURN_CHECKPOINT, Attach.NONE),
    (ReusePath.RESTORE_TURN_CHECKPOINT, Attach.REGISTRY),
    (ReusePath.RESTORE_RESPONSE_CHECKPOINT, Attach.NONE),
    (ReusePath.RESTORE_RESPONSE_CHECKPOINT, Attach.REGISTRY),
    (ReusePath.RESTORE_ANCHOR, Attach.ANCHOR),
    (ReusePath.RESTORE_BRANCH_POINT, Attach.NONE),
    (ReusePath.RESTORE_BRANCH_POINT, Attach.REGISTRY),
    (ReusePath.RESTORE_BRANCH_POINT, Attach.ANCHOR),
)
_WAYS: tuple[tuple[str, str], ...] = (_NEVER_STARTED, *_ADMISSIONS)
_KINDS = {
    ReusePath.APPEND_FRONTIER: "frontier",
    ReusePath.RESTORE_TURN_CHECKPOINT: "turn_checkpoint",
    ReusePath.RESTORE_RESPONSE_CHECKPOINT: "response_checkpoint",
    ReusePath.RESTORE_ANCHOR: "anchor",
    ReusePath.RESTORE_BRANCH_POINT: "branch_point",
}
_SOURCES = ("computed", "lane", "registry", "anchor", "host", "disk")

_QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
# Copying a state takes microseconds for the smallest model, a fraction of a millisecond on a GPU
# for a 27B shape, and a hundred times that through a slow host.
_MOVE_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_GAP_S = (0.1, 1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)


class Metrics:
    """The metrics of one process. Implements `engine.interface.observer.Observer`.

    Every callback only increments children that were bound at the start. The engine calls one at a
    time; the request log, the tracer and the API may call from any thread.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._bind_requests()
        self._bind_moves()
        self._bind_times()
        self._bind_telemetry()

    def watch(self, engine: EngineProtocol) -> None:
        """Register the gauges of an engine, which take one snapshot per scrape."""
        self.registry.register(EngineGauges(engine, start_time_s=time.time()))

    # Called by the engine.

    def request_ended(self, record: RequestRecord) -> None:
        """Count a finished request."""
        admission, outcome = record.admission, record.outcome
        way = (admission.reuse_path, admission.attach) if admission else _NEVER_STARTED
        self._requests[*way, record.tail, outcome].inc()
        self._request_s[outcome].observe(record.total_s)
        self._completion_tokens.inc(len(record.output_ids))
        if record.error_code is not None:
            self._failed[record.error_code].inc()
        if admission is not None:
            self._count_admission(record, admission)

    def registry_changed(self, event: Event) -> None:
        """Count an event of the registry."""
        match event:
            case events.Detached():
                self._detaches["kept" if event.num_states else "dropped"].inc()
            case events.StateKept():
                self._states_kept[event.kind].inc()
            case events.Evicted():
                self._evictions[event.reason].inc()
                self._evicted_bytes[event.reason].inc(event.freed_bytes)
            case events.PinEnded():
                self._pins_ended.inc()

    def state_copied(self, seconds: float) -> None:
        """Observe how long copying a resumed state took."""
        self._attach_s.observe(seconds)

    def token_followed(self, gap_s: float) -> None:
        """Observe the time between two tokens."""
        self._inter_token_s.observe(gap_s)

    # Called by the API, the request log and the tracer.

    def request_refused(self, code: str) -> None:
        """Count a request that was rejected before the engine accepted it."""
        self._refused[code].inc()

    def log_line_written(self) -> None:
        """Count a line of the request log."""
        self._log_lines.inc()

    def log_line_lost(self, reason: LogLoss) -> None:
        """Count a line that the request log has dropped."""
        self._log_errors[reason].inc()

    def spans_ended(self, result: SpanResult, count: int = 1) -> None:
        """Count spans that were exported or dropped."""
        self._spans[result].inc(count)

    def _count_admission(self, record: RequestRecord, admission: Admission) -> None:
        cached, attach = admission.cached_tokens, admission.attach
        self._prompt_tokens["computed"].inc(admission.computed_tokens)
        self._prompt_tokens["lane" if attach is Attach.NONE else attach].inc(cached)
        self._regret_tokens.inc(admission.regret_tokens)
        if attach is not Attach.NONE:
            self._attaches[attach, _KINDS[admission.reuse_path]].inc()
        if admission.gap_s is not None:
            self._gap_s.observe(max(0.0, admission.gap_s))
        if record.queue_s is not None:
            self._queue_s.observe(record.queue_s)
        if record.ttft_s is not None:
            self._ttft_s[admission.reuse_path].observe(record.ttft_s)

    # The definitions.

    def _bind_requests(self) -> None:
        requests = self._counter(
            "requests_total",
            "Accepted requests that have ended.",
            ("reuse_path", "attach", "tail", "outcome"),
        )
        self._requests = {labels: requests.labels(*labels) for labels in _requests_that_occur()}
        self._failed = self._counters(
            "failed_requests_total",
            "Accepted requests that failed, by error code.",
            "code",
            _codes(),
        )
        self._refused = self._counters(
            "refused_requests_total",
            "Requests that were rejected, by error code.",
            "code",
            [*_codes(but=FAILURES), "internal_error"],
        )
        self._prompt_tokens = self._counters(
            "prompt_tokens_total",
            "Prompt tokens of admitted requests, by source.",
            "source",
            _SOURCES,
        )
        self._completion_tokens = self._counter(
            "completion_tokens_total", "Tokens sampled for finished requests."
        )
        self._regret_tokens = self._counter(
            "current_state_regret_tokens_total",
            "Prompt tokens recomputed because a current state was dropped.",
        )
        for name in ("drafted", "accepted"):
            self._counter(f"mtp_{name}_tokens_total", f"Tokens that the draft head had {name}.")

    def _bind_moves(self) -> None:
        self._detaches = self._counters(
            "detaches_total",
            "Sessions whose lane another one got, by whether states of them are still kept.",
            "result",
            ("kept", "dropped"),
        )
        attaches = self._counter(
            "attaches_total",
            "Requests that resumed another session's state than their lane's, by source and kind.",
            ("from", "kind"),
        )
        pairs = [
            (attach, _KINDS[path]) for path, attach in _ADMISSIONS if attach is not Attach.NONE
        ]
        self._attaches = {pair: attaches.labels(*pair) for pair in pairs}
        self._states_kept = self._counters(
            "states_kept_total", "States that were captured, by kind.", "kind", StateKind
        )
        self._pins_ended = self._counter("pins_ended_total", "Pins that ended early.")
        self._evictions = self._counters(
            "evictions_total", "Kept states that were freed.", "reason", EvictionReason
        )
        self._evicted_bytes = self._counters(
            "evicted_bytes_total",
            "Bytes of state slots and pages that were freed with them.",
            "reason",
            EvictionReason,
        )

    def _bind_times(self) -> None:
        self._queue_s = self._histogram(
            "queue_seconds", "From the arrival of a request to its admission.", _QUEUE_S
        )
        ttft = self._histogram(
            "ttft_seconds",
            "From the arrival of a request to its first token.",
            _TTFT_S,
            "reuse_path",
        )
        self._ttft_s = {path: ttft.labels(path) for path in ReusePath}
        self._inter_token_s = self._histogram(
            "inter_token_seconds", "Between two tokens of one answer.", _TOKEN_S
        )
        self._attach_s = self._histogram(
            "attach_seconds", "Copying the state that a request resumes.", _MOVE_S
        )
        self._gap_s = self._histogram(
            "reuse_gap_seconds", "How long a resumed state was at rest.", _GAP_S
        )
        whole = self._histogram(
            "request_seconds", "From the arrival of a request to its end.", _REQUEST_S, "outcome"
        )
        self._request_s = {outcome: whole.labels(outcome) for outcome in Outcome}

    def _bind_telemetry(self) -> None:
        self._log_lines = self._counter(
            "request_log_lines_total", "Lines that the request log has written."
        )
        self._log_errors = self._counters(
            "request_log_errors_total",
            "Lines that the request log has dropped.",
            "reason",
            get_args(LogLoss),
        )
        self._spans = self._counters(
            "trace_spans_total",
            "Spans, by result.",
            "result",
            get_args(SpanResult),
        )

    def _counter(self, name: str, text: str, labels: Items[str] = ()) -> Counter:
        return Counter(f"kvreg_{name}", text, labels, registry=self.registry)

    def _counters(
        self, name: str, text: str, label: str, values: Iterable[str]
    ) -> dict[str, Counter]:
        family = self._counter(name, text, (label,))
        return {value: family.labels(value) for value in values}

    def _histogram(self, name: str, text: str, buckets: Items[float], *labels: str) -> Histogram:
        return Histogram(
            f"kvreg_{name}", text, labels, registry=self.registry, buckets=tuple(buckets)
        )


def _requests_that_occur() -> Iterator[tuple[str, str, str, str]]:
    for way in _WAYS:
        for tail in Tail:
            for outcome in Outcome:
                if way != _NEVER_STARTED or outcome is not Outcome.FINISHED:
                    yield *way, tail, outcome


def _codes(but: tuple[type[errors.KvregError], ...] = ()) -> list[str]:
    """Return the codes of all errors of a running engine, except those of some classes."""
    return [kind.code for kind in _kinds_of(errors.KvregError) if not issubclass(kind, but)]


def _kinds_of(base: type[errors.KvregError]) -> Iterator[type[errors.KvregError]]:
    yield base
    for kind in base.__subclasses__():
        if not issubclass(kind, errors.ConfigurationError):
            yield from _kinds_of(kind)
