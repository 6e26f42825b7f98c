"""Each chat request writes one access log line, with numbers and without text."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from kvreg_service.core.errors import Overloaded, RequestFailed
from kvreg_service.json_log import build_formatter
from kvreg_service.testing.fake_engine import FakeEngine, Gate, Script

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The access log lines of the test so far."""
    seen: list[dict[str, Any]] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.endswith("access_log"):
                seen.append(json.loads(build_formatter().format(record)))

    caplog.set_level(logging.INFO)
    logging.getLogger("kvreg_service.api.generation.access_log").addHandler(collect := Collect())
    yield seen  # type: ignore[misc]
    logging.getLogger("kvreg_service.api.generation.access_log").removeHandler(collect)


@pytest.mark.parametrize("stream", [False, True])
async def test_finished_request_has_one_line_with_its_numbers(
    client: httpx.AsyncClient, lines: list[dict[str, Any]], body: dict[str, Any], stream: bool
) -> None:
    response = await client.post(URL, json=body | {"stream": stream})
    assert len(lines) == 1
    line = lines[0]
    assert line["request_id"] == response.headers["x-request-id"]
    assert {k: line[k] for k in ("outcome", "prompt_tokens", "cached_tokens")} == {
        "outcome": "finished",
        "prompt_tokens": 9,
        "cached_tokens": 0,
    }
    assert (line["completion_tokens"], line["finish_reason"]) == (3, "stop")
    assert (line["queue_s"], line["ttft_s"]) == (0.25, 0.875)
    assert (line["diverged_at"], line["regret_tokens"]) == (None, 0)
    assert line["total_s"] >= 0


async def test_line_holds_no_text(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    lines: list[dict[str, Any]],
    body: dict[str, Any],
) -> None:
    engine.scripts = [Script(steps=["zebra"])]
    await client.post(URL, json=body | {"messages": [{"role": "user", "content": "giraffe"}]})
    assert "zebra" not in json.dumps(lines)
    assert "giraffe" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (Script(before=[Overloaded("full", retry_after_s=1.0)]), "server_overloaded"),
        (Script(steps=["a", RequestFailed("no luck")]), "request_failed"),
        (Script(steps=["a", RuntimeError("bug")]), "internal_error"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failed_request_has_one_line_with_its_code(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    lines: list[dict[str, Any]],
    body: dict[str, Any],
    script: Script,
    code: str,
    stream: bool,
) -> None:
    engine.scripts = [script]
    await client.post(URL, json=body | {"stream": stream})
    assert [(line["outcome"], line["code"]) for line in lines] == [("failed", code)]


async def test_cancelled_request_has_one_line(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    lines: list[dict[str, Any]],
    body: dict[str, Any],
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=["a", gate])]
    task = asyncio.ensure_future(client.post(URL, json=body))
    await asyncio.to_thread(gate.wait_until_reached)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [(line["outcome"], line["completion_tokens"]) for line in lines] == [("cancelled", 1)]
