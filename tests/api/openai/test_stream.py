"""Streams of chat completions as raw server-sent events."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from kvreg_service.core.errors import RequestFailed
from kvreg_service.core.labels import ReusePath
from kvreg_service.testing.fake_engine import FakeEngine, Script

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"stream": True}


async def read_events(client: httpx.AsyncClient, body: dict[str, Any]) -> list[str]:
    response = await client.post(URL, json=body)
    assert response.status_code == 200
    events = response.text.split("\n\n")
    assert events.pop() == ""
    return events


async def read_chunks(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    *events, last = await read_events(client, body)
    assert last == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_stream_has_the_headers_of_an_event_stream(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    response = await client.post(URL, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"


async def test_stream_is_role_then_text_then_finish_reason(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    chunks = await read_chunks(client, body)
    seen = [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks]
    assert seen == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hello"}, None),
        ({"content": ", "}, None),
        ({"content": "you."}, None),
        ({}, "stop"),
    ]


async def test_all_chunks_have_the_same_id(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    chunks = await read_chunks(client, body)
    names = {(c["id"], c["object"], c["created"], c["model"]) for c in chunks}
    assert len(names) == 1


async def test_finish_chunk_has_the_usage_unless_requested_separately(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(cached_tokens=4, reuse_path=ReusePath.APPEND_FRONTIER)]
    *others, last = await read_chunks(client, body)
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert last["usage"]["kvreg"]["reuse_path"] == "append_frontier"
    assert last["timings"]["ttft_s"] == 0.875
    assert not [chunk for chunk in others if "usage" in chunk or "timings" in chunk]


async def test_extra_chunk_has_the_usage_with_include_usage(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    fields = {"stream_options": {"include_usage": True}}
    *others, last = await read_chunks(client, body | fields)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert last["timings"]["decode_s"] == 2.0
    assert {repr(chunk["usage"]) for chunk in others} == {"None"}


async def test_usage_is_the_same_streamed_or_whole(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    *_, last = await read_chunks(client, body)
    whole = (await client.post(URL, json=body | {"stream": False})).json()
    assert last["usage"] == whole["usage"]


async def test_reasoning_is_streamed_in_its_own_field(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["I think", "\n</think>\n\n", "So."])]
    chunks = await read_chunks(client, body | {"enable_thinking": True})
    deltas = [c["choices"][0]["delta"] for c in chunks[1:-1]]
    assert deltas == [{"reasoning_content": "I think"}, {"content": "So."}]


async def test_tokens_without_text_have_no_chunk(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["", "a", ""])]
    chunks = await read_chunks(client, body)
    assert [c["choices"][0]["delta"] for c in chunks[1:-1]] == [{"content": "a"}]
    assert chunks[-1]["usage"]["completion_tokens"] == 3


async def test_line_breaks_in_the_text_do_not_break_events(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    text = "a\n\nb\r\u2028ü"
    engine.scripts = [Script(steps=[text])]
    response = await client.post(URL, json=body)
    events = response.content.split(b"\n\n")
    assert json.loads(events[1].removeprefix(b"data: "))["choices"][0]["delta"]["content"] == text


async def test_failure_before_the_first_event_is_an_ordinary_error(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(before=[RequestFailed("no luck")])]
    response = await client.post(URL, json=body)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "request_failed"


async def test_failure_in_the_middle_is_the_last_event(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["Hel", RequestFailed("no luck"), "lo"])]
    events = await read_events(client, body)
    name, _, data = events[-1].partition("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "error": {
            "message": "no luck",
            "type": "server_error",
            "param": None,
            "code": "request_failed",
        }
    }


async def test_bug_in_the_middle_is_an_event_without_its_message(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["Hel", RuntimeError("secret path")])]
    events = await read_events(client, body)
    assert '"code":"internal_error"' in events[-1]
    assert "secret" not in events[-1]
