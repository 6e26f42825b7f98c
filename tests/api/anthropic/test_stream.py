"""Streams of the Messages API as raw server-sent events."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from kvreg_service.api.app import create_app
from kvreg_service.core.errors import Overloaded, RequestFailed
from kvreg_service.core.labels import FinishReason, ReusePath
from kvreg_service.settings import Settings
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
URL = "/v1/messages"
CALL = '<tool_call>{"name": "look", "arguments": {"at": "sky", "days": 3}}</tool_call>'
TOOL = {"name": "look", "input_schema": {"type": "object"}}


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": 100, "stream": True, "tools": [TOOL]}


def parse_events(text: str) -> list[dict[str, Any]]:
    """The bodies of all events; the name of each event equals its type."""
    *events, end = text.split("\n\n")
    assert end == ""
    bodies = []
    for event in events:
        name, data = event.split("\n")
        bodies.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {bodies[-1]['type']}"
    return bodies


async def read_events(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(URL, json=body)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_events(response.text)


async def test_stream_is_message_blocks_and_end(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    events = await read_events(client, body)
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_first_event_is_the_message_without_its_content(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(cached_tokens=4, reuse_path=ReusePath.APPEND_FRONTIER)]
    message = (await read_events(client, body))[0]["message"]
    assert (message["role"], message["content"], message["stop_reason"]) == ("assistant", [], None)
    assert message["usage"]["cache_read_input_tokens"] == 4
    assert message["usage"]["input_tokens"] == len(b"user: Hi\n") - 4
    assert message["usage"]["output_tokens"] == 0


async def test_each_type_has_its_own_block(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    steps = ["I ", "think", "\n</think>\n\n", "Let me.", "\n\n", CALL, "\n", CALL, "\nSo."]
    engine.scripts = [Script(steps=steps)]
    events = await read_events(client, body | {"thinking": {"type": "enabled"}})
    blocks = [event for event in events if event["type"].startswith("content_block")]
    starts = [e["content_block"] for e in blocks if e["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == [
        "thinking", "text", "tool_use", "tool_use", "text",
    ]  # fmt: skip
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert starts[1] == {"type": "text", "text": ""}
    assert starts[2] == {"type": "tool_use", "id": starts[2]["id"], "name": "look", "input": {}}
    order = [(event["type"].removeprefix("content_block_"), event["index"]) for event in blocks]
    for index in range(5):
        own = [what for what, number in order if number == index]
        assert (own[0], own[-1], set(own[1:-1])) == ("start", "stop", {"delta"})
    assert [number for _, number in order] == sorted(number for _, number in order)


async def test_thinking_ends_with_a_signature(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["I ", "think"], finish_reason=FinishReason.LENGTH)]
    events = await read_events(client, body | {"thinking": {"type": "enabled"}})
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == [
        "thinking_delta", "thinking_delta", "signature_delta",
    ]  # fmt: skip


async def test_input_of_a_call_is_streamed_as_json_fragments(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=list(CALL))]
    events = await read_events(client, body)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    assert len(deltas) > 1
    text = "".join(delta["partial_json"] for delta in deltas)
    assert json.loads(text) == {"at": "sky", "days": 3}


async def test_last_events_have_stop_reason_and_usage(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(stop_string="END", cached_tokens=2)]
    whole = (await client.post(URL, json=body | {"stream": False})).json()
    engine.scripts = [Script(stop_string="END", cached_tokens=2)]
    *_, delta, stop = await read_events(client, body)
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert delta["usage"] == whole["usage"]
    assert delta["timings"] == whole["timings"]
    assert stop == {"type": "message_stop"}


async def test_empty_answer_has_no_blocks(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["", ""])]
    events = await read_events(client, body)
    assert [event["type"] for event in events] == [
        "message_start", "ping", "message_delta", "message_stop",
    ]  # fmt: skip


async def test_failure_in_the_middle_is_the_last_event(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["Hel", RequestFailed("no luck"), "lo"])]
    *_, last = await read_events(client, body)
    details = {"error_code": "request_failed", "param": None}
    assert last == {
        "type": "error",
        "error": {"type": "api_error", "message": "no luck", "details": details},
    }


async def test_failure_before_the_first_event_is_an_ordinary_error(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(before=[Overloaded("the queue is full", retry_after_s=2.0)])]
    response = await client.post(URL, json=body)
    assert (response.status_code, response.json()["type"]) == (429, "error")


async def test_stream_pings_while_a_call_is_generated(
    engine: FakeEngine, prompt_builder: FakePromptBuilder, settings: Settings, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL[:20], CALL[20:40], CALL[40:]])]
    app = create_app(engine, prompt_builder, settings, keep_alive_s=0)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        events = await read_events(client, body)
    assert [event["type"] for event in events[1:5]] == [
        "ping", "ping", "ping", "content_block_start",
    ]  # fmt: skip
