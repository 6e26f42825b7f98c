"""Sampling and export of spans, and a collector that is down."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode
from tests.unit.telemetry.ended_requests import FAILED, FINISHED

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.settings import load_settings
from kvreg_service.telemetry.tracing import span_export
from kvreg_service.telemetry.tracing.factory import require_tracing, start_tracing
from kvreg_service.telemetry.tracing.span_export import MAX_WAITING_REQUESTS, SpanResult, SpanSender

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
SPANS_OF_ONE = 5


class Collector(SpanExporter):
    """Keeps exported spans. Fails with ``is_down``, and blocks while ``is_open`` is not set."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.is_down = False
        self.is_open = threading.Event()
        self.is_open.set()
        self.was_called = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.was_called.set()
        self.is_open.wait()
        if self.is_down:
            return SpanExportResult.FAILURE
        self.spans += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """A blocked call stays blocked."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.is_open.set()


class Counts:
    def __init__(self) -> None:
        self.values: Counter[SpanResult] = Counter()

    def __call__(self, result: SpanResult, count: int) -> None:
        self.values[result] += count


@pytest.fixture
def counts() -> Counts:
    return Counts()


Sending = Callable[..., "contextmanager[SpanSender]"]


@pytest.fixture
def sending(collector: Collector, counts: Counts) -> Sending:
    @contextmanager
    def start(ratio: float = 1.0, timeout_s: float = 30.0) -> Iterator[SpanSender]:
        sender = SpanSender(
            collector,
            model="tiny",
            ratio=ratio,
            resource={"service.name": "kvreg"},
            count=counts,
        )
        try:
            yield sender
        finally:
            sender.close(timeout_s)

    return start


def identity_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


# Content of the spans.


def test_request_is_a_root_and_its_parts_are_its_children(
    sending: Sending, collector: Collector
) -> None:
    with sending() as sender:
        sender.request_ended(FINISHED)
    whole, *parts = collector.spans
    assert (whole.parent, whole.kind) == (None, SpanKind.SERVER)
    for part in parts:
        assert part.parent is not None
        assert (part.parent.trace_id, part.parent.span_id) == identity_of(whole)
        assert identity_of(part)[0] == identity_of(whole)[0]
    assert [part.name for part in parts] == ["queue", "attach", "prefill", "decode"]


def test_spans_have_the_times_of_the_request(sending: Sending, collector: Collector) -> None:
    with sending() as sender:
        sender.request_ended(FINISHED)
    whole = collector.spans[0]
    assert whole.start_time is not None
    assert [
        ((span.start_time or 0) - whole.start_time, (span.end_time or 0) - whole.start_time)
        for span in collector.spans
    ] == [
        (0, 4_000_000_000),
        (0, 500_000_000),
        (500_000_000, 750_000_000),
        (750_000_000, 1_500_000_000),
        (1_500_000_000, 4_000_000_000),
    ]


def test_failure_is_the_status_of_the_whole(sending: Sending, collector: Collector) -> None:
    with sending() as sender:
        sender.request_ended(FAILED)
    whole, *parts = collector.spans
    assert (whole.status.status_code, whole.status.description) == (
        StatusCode.ERROR,
        "request_failed",
    )
    assert {part.status.status_code for part in parts} == {StatusCode.UNSET}


# Sampling.


def test_caller_is_the_parent(sending: Sending, collector: Collector) -> None:
    with sending(ratio=0.0) as sender:
        sender.request_ended(replace(FINISHED, trace_parent=PARENT))
    whole = collector.spans[0]
    assert whole.parent is not None
    assert (whole.parent.span_id, whole.parent.is_remote) == (0x0123456789ABCDEF, True)
    assert {identity_of(span)[0] for span in collector.spans} == {whole.parent.trace_id}


def test_caller_that_was_not_sampled_is_followed_too(
    sending: Sending, collector: Collector
) -> None:
    with sending(ratio=1.0) as sender:
        sender.request_ended(replace(FINISHED, trace_parent=PARENT[:-1] + "0"))
    assert collector.spans == []


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        PARENT.replace("0123456789abcdef0123456789abcdef", "0" * 32),
        PARENT.replace("-0123456789abcdef-", f"-{'0' * 16}-"),
        PARENT.upper(),
        "ff" + PARENT[2:],
        PARENT + "-more",
        PARENT + " " * 600,
        f"{PARENT}, {PARENT}",
    ],
)
def test_an_invalid_header_makes_a_root(
    sending: Sending, collector: Collector, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    with sending() as sender:
        sender.request_ended(replace(FINISHED, trace_parent=header))
    assert collector.spans[0].parent is None
    assert not caplog.records


def test_ratio_is_of_those_without_a_caller(
    sending: Sending, collector: Collector, counts: Counts
) -> None:
    with sending(ratio=0.5) as sender:
        for _ in range(400):
            sender.request_ended(FINISHED)
    # Six standard deviations of a fair coin to either side.
    assert 140 < len(collector.spans) / SPANS_OF_ONE < 260
    assert counts.values == {"exported": len(collector.spans)}


def test_each_root_is_a_trace_of_its_own(sending: Sending, collector: Collector) -> None:
    with sending() as sender:
        sender.request_ended(FINISHED)
        sender.request_ended(FINISHED)
    assert len({identity_of(span)[0] for span in collector.spans}) == 2
    assert len({identity_of(span) for span in collector.spans}) == 2 * SPANS_OF_ONE


# Failed exports.


def test_engine_does_not_wait_for_a_collector_that_hangs(
    sending: Sending, collector: Collector, counts: Counts
) -> None:
    collector.is_open.clear()
    with sending() as sender:
        sender.request_ended(FINISHED)
        assert collector.was_called.wait(30)
        for _ in range(MAX_WAITING_REQUESTS + 3):
            sender.request_ended(FINISHED)
        assert counts.values == {"dropped": 3 * SPANS_OF_ONE}
        collector.is_open.set()
    assert counts.values["exported"] == (MAX_WAITING_REQUESTS + 1) * SPANS_OF_ONE


def test_end_does_not_wait_for_a_collector_that_hangs(
    sending: Sending, collector: Collector, counts: Counts
) -> None:
    collector.is_open.clear()
    with sending(timeout_s=0.01) as sender:
        sender.request_ended(FINISHED)
        assert collector.was_called.wait(30)
        sender.request_ended(FINISHED)
    assert counts.values["dropped"] == SPANS_OF_ONE


def test_end_sends_what_waits(sending: Sending, collector: Collector, counts: Counts) -> None:
    with sending() as sender:
        for _ in range(MAX_WAITING_REQUESTS // 2):
            sender.request_ended(FINISHED)
    assert len(collector.spans) == MAX_WAITING_REQUESTS // 2 * SPANS_OF_ONE
    assert counts.values == {"exported": len(collector.spans)}


def test_lost_spans_are_counted_and_logged_once_a_minute(
    sending: Sending,
    collector: Collector,
    counts: Counts,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_export, "_INTERVAL_S", 0.001)
    collector.is_down = True
    with sending() as sender:
        for _ in range(3):
            collector.was_called.clear()
            sender.request_ended(FINISHED)
            assert collector.was_called.wait(30)
    told = [vars(line)["num_spans"] for line in caplog.records]
    assert counts.values == {"dropped": 3 * SPANS_OF_ONE}
    # One line at the first failure, and one at the end for the rest.
    assert told == [SPANS_OF_ONE, 2 * SPANS_OF_ONE]


def test_exporter_that_raises_does_not_end_the_thread(
    sending: Sending, collector: Collector, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "_INTERVAL_S", 0.001)
    lost = threading.Event()

    def raise_once(_spans: Sequence[ReadableSpan]) -> SpanExportResult:
        monkeypatch.undo()
        lost.set()
        raise ValueError("a span that cannot be written")

    monkeypatch.setattr(collector, "export", raise_once)
    with sending() as sender:
        sender.request_ended(FINISHED)
        assert lost.wait(30)
        sender.request_ended(FINISHED)
    assert counts.values == {"dropped": SPANS_OF_ONE, "exported": SPANS_OF_ONE}


def test_log_of_the_exporter_is_its_own_again_at_the_end(
    sending: Sending, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with sending():
        theirs.error("Failed to export spans batch code: 500, reason: broken")
        assert not caplog.records
    theirs.error("again")
    assert [line.message for line in caplog.records] == ["again"]


# Whether tracing is on.


def test_nothing_is_started_without_an_endpoint(counts: Counts) -> None:
    assert start_tracing(load_settings(), counts) is None


def test_standard_variables_alone_start_nothing(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert start_tracing(load_settings(), counts) is None


def test_missing_package_stops_the_start_and_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "kvreg_service.telemetry.tracing.span_export")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigurationError, match=r"kvreg\[otlp\]"):
        require_tracing(load_settings({"otlp_endpoint": "http://127.0.0.1:9"}))


def test_missing_package_is_no_matter_without_an_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kvreg_service.telemetry.tracing.span_export", None)
    require_tracing(load_settings())


@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318",
        "ftp://collector",
        "http://",
        "http://user:pass@collector",
        "http://collector/v1/traces",
        "http://collector?x=1",
        "http://collector:99999",
    ],
)
def test_endpoint_that_is_no_base_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="otlp_endpoint"):
        load_settings({"otlp_endpoint": endpoint})


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "nan"])
def test_ratio_is_a_part_of_one(ratio: str) -> None:
    with pytest.raises(ConfigurationError, match="trace_ratio"):
        load_settings({"trace_ratio": ratio})


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("KVREG_")]:
        monkeypatch.delenv(name)
