"""A trace collector: receives OTLP over HTTP and decodes the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class ReceivedSpan:
    """A received span. ``parent_id`` is empty for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    scope: str
    schema_url: str


@dataclass
class Receiver:
    """The received spans. It responds with ``status``."""

    url: str = ""
    status: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    calls: list[dict[str, str]] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def take(self, headers: dict[str, str], body: bytes) -> None:
        """Record one export."""
        with self.arrived:
            self.calls.append(headers)
            if self.status == 200:
                self.spans += _spans_of(body)
            self.arrived.notify_all()

    def wait_for(self, num_spans: int, timeout_s: float = 30.0) -> list[ReceivedSpan]:
        """Wait for this many spans, and return all received spans."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.spans) >= num_spans, timeout_s), (
                f"{len(self.spans)} of {num_spans} spans arrived"
            )
            return list(self.spans)

    def traces(self) -> dict[str, list[ReceivedSpan]]:
        """The spans of each request by its id: the root, then its children in order."""
        wholes = {s.span_id: s for s in self.spans if "gen_ai.response.id" in s.attributes}
        of_requests = {whole.attributes["gen_ai.response.id"]: [whole] for whole in wholes.values()}
        for span in sorted(self.spans, key=lambda span: (span.start_ns, span.end_ns)):
            if span.span_id not in wholes:
                whole = wholes[span.parent_id]
                of_requests[whole.attributes["gen_ai.response.id"]].append(span)
        return of_requests


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """Run a receiver on a free loopback port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces", self.path
            assert self.headers["Content-Type"] == "application/x-protobuf"
            receiver.take(dict(self.headers), body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(receiver.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, name="otlp-receiver")
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _spans_of(body: bytes) -> Iterator[ReceivedSpan]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    kind=span.kind,
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    status=span.status.code,
                    attributes=_values(span.attributes),
                    resource=resource,
                    scope=of_scope.scope.name,
                    schema_url=of_scope.schema_url,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
