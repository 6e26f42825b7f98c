"""Traces of a real server, received over OTLP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tests.api.otlp_receiver import Receiver, running_receiver

from kvreg_service.reference_model import REFERENCE_MODEL_PATH

TRACE_ID, CALLER_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "The code of the locker is 4921."
SERVER_KIND, INTERNAL_KIND = 2, 1
UNSET, ERROR = 0, 2


@dataclass
class Program:
    """A server in a separate process."""

    process: subprocess.Popen[str]
    url: str
    log: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str = "Hi", **headers: str) -> httpx.Response:
        return httpx.post(
            f"{self.url}/v1/chat/completions",
            json={
                "model": "kvreg-reference",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 4,
            },
            headers=headers,
            timeout=60,
        )

    def count(self, result: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        (line,) = [
            line
            for line in text.splitlines()
            if line.startswith(f'kvreg_trace_spans_total{{result="{result}"}}')
        ]
        return float(line.split()[1])

    def end(self) -> None:
        """Send the signal, wait for the exit and read the log."""
        self.process.send_signal(signal.SIGTERM)
        output, errors = self.process.communicate(timeout=60)
        assert (self.process.returncode, errors) == (0, "")
        self.log = [json.loads(line) for line in output.splitlines()]


@contextmanager
def serving(*arguments: str) -> Iterator[Program]:
    command = [sys.executable, "-m", "kvreg_service", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        [*command, "--memory-gib", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, process.communicate()
            yield Program(process, url)
        finally:
            process.kill()


def end_tokens() -> list[int]:
    """Without them an answer does not end."""
    config = json.loads((REFERENCE_MODEL_PATH / "generation_config.json").read_text())
    ids = config["eos_token_id"]
    return ids if isinstance(ids, list) else [ids]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as receiver:
        yield receiver


def test_requests_of_a_server_arrive_with_names_parents_and_times(receiver: Receiver) -> None:
    with serving("--otlp-endpoint", receiver.url) as server:
        began_ns = time.time_ns()
        answer = server.ask(SECRET, traceparent=f"00-{TRACE_ID}-{CALLER_ID}-01")
        ended_ns = time.time_ns()
        other = server.ask(SECRET)
        # The signal follows at once: the shutdown flushes these spans.
        server.end()
    of_requests = receiver.traces()
    assert set(of_requests) == {answer.json()["id"], other.json()["id"]}
    whole, *parts = of_requests[answer.json()["id"]]

    assert (whole.name, whole.kind, whole.status) == ("chat kvreg-reference", SERVER_KIND, UNSET)
    assert (whole.trace_id, whole.parent_id) == (TRACE_ID, CALLER_ID)
    assert [part.name for part in parts] == ["queue", "attach", "prefill", "decode"]
    assert {(p.trace_id, p.parent_id, p.kind) for p in parts} == {
        (TRACE_ID, whole.span_id, INTERNAL_KIND)
    }
    # The two clocks have different resolutions; the offset was taken at the start of the server.
    slack_ns = 50_000_000
    assert began_ns - slack_ns <= whole.start_ns <= whole.end_ns <= ended_ns + slack_ns
    assert parts[0].start_ns == whole.start_ns
    assert [part.end_ns for part in parts[:-1]] == [part.start_ns for part in parts[1:]]
    assert parts[-1].end_ns == whole.end_ns

    usage = answer.json()["usage"]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "kvreg-reference",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.response.finish_reasons": [answer.json()["choices"][0]["finish_reason"]],
        "kvreg.reuse_path": "full_reset",
        "kvreg.attach": "none",
        "kvreg.tail": "user",
    }
    assert expected.items() <= whole.attributes.items()
    assert (whole.resource["service.name"], whole.scope) == ("kvreg", "kvreg")
    assert whole.schema_url == "https://opentelemetry.io/schemas/1.41.1"

    root = of_requests[other.json()["id"]][0]
    assert root.parent_id == ""
    assert root.trace_id != TRACE_ID
    shown = repr(receiver.spans)
    assert "locker" not in shown
    assert "default" not in shown


def test_answer_in_progress_at_the_signal_is_traced(receiver: Receiver) -> None:
    with (
        serving("--otlp-endpoint", receiver.url) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        body = {
            "model": "kvreg-reference",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 200,
            "stream": True,
            "temperature": 0,
        }
        with client.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
        server.end()
    (whole, *_) = receiver.traces()[json.loads(first.removeprefix("data: "))["id"]]
    assert whole.attributes["kvreg.outcome"] == "finished"


def test_request_that_times_out_in_the_queue_is_an_error_with_one_part(
    receiver: Receiver,
) -> None:
    with (
        serving("--otlp-endpoint", receiver.url, "--queue-timeout-s", "0.05") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        endless = {
            "model": "kvreg-reference",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "logit_bias": {str(token): -100 for token in end_tokens()},
        }
        with client.stream("POST", "/v1/chat/completions", json=endless) as stream:
            lines = stream.iter_lines()
            next(lines)
            refused = server.ask()
            # The open stream occupies the lane until here.
            lines.close()
        server.end()
    assert refused.json()["error"]["code"] == "request_queue_timeout"
    (failed,) = [spans for spans in receiver.traces().values() if spans[0].status == ERROR]
    assert [span.name for span in failed] == ["chat kvreg-reference", "queue"]
    assert failed[0].attributes["error.type"] == "request_queue_timeout"


def test_exported_spans_are_counted(receiver: Receiver) -> None:
    with serving("--otlp-endpoint", receiver.url) as server:
        server.ask()
        receiver.wait_for(5)
        deadline_s = time.monotonic() + 30
        while server.count("exported") != 5:
            assert time.monotonic() < deadline_s
        assert server.count("dropped") == 0


def test_server_without_its_collector_serves_and_exits_in_time() -> None:
    # This loopback port is closed.
    with serving("--otlp-endpoint", "http://127.0.0.1:9") as server:
        answers = [server.ask().status_code for _ in range(3)]
        began_s = time.monotonic()
        server.end()
        took_s = time.monotonic() - began_s
    assert answers == [200, 200, 200]
    # The flush timeout is 5 s; the rest is for the exit of a process on a busy machine.
    assert took_s < 30
    reports = [line for line in server.log if line["logger"].endswith("span_export")]
    assert 1 <= len(reports) <= 2
    assert sum(line["num_spans"] for line in reports) == 15
    assert "refused" in reports[0]["reason"]
    assert not [line for line in server.log if line["logger"].startswith("opentelemetry")]


def test_collector_that_refuses_spans_does_not_affect_requests(receiver: Receiver) -> None:
    receiver.status = 400
    with serving("--otlp-endpoint", receiver.url) as server:
        assert server.ask().status_code == 200
        deadline_s = time.monotonic() + 30
        while server.count("dropped") != 5:
            assert time.monotonic() < deadline_s
        assert server.count("exported") == 0
        server.end()
    assert len(receiver.calls) == 1


def test_ratio_of_zero_traces_only_requests_with_a_sampled_parent(receiver: Receiver) -> None:
    with serving("--otlp-endpoint", receiver.url, "--trace-ratio", "0") as server:
        server.ask()
        traced = server.ask(traceparent=f"00-{TRACE_ID}-{CALLER_ID}-01").json()["id"]
        server.ask(traceparent=f"00-{TRACE_ID}-{CALLER_ID}-00")
        server.end()
    assert set(receiver.traces()) == {traced}


def test_nothing_of_opentelemetry_is_loaded_without_an_endpoint() -> None:
    code = (
        "import sys\n"
        "from kvreg_service.settings import load_settings\n"
        "from kvreg_service.telemetry.tracing.factory import require_tracing, start_tracing\n"
        "require_tracing(load_settings())\n"
        "assert start_tracing(load_settings(), print) is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "[]\n"
