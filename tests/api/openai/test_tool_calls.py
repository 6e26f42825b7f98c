"""Tool calls of chat completions, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from kvreg_service.api.app import create_app
from kvreg_service.core.labels import FinishReason
from kvreg_service.settings import Settings
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"

CALL = (
    "<tool_call>\n<function=look>\n<parameter=at>\nthe sky\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
ARGUMENTS = {"at": "the sky", "days": 3}


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    properties = {"at": {"type": "string"}, "days": {"type": "integer"}}
    schema = {"type": "object", "properties": properties}
    function = {"name": "look", "parameters": schema}
    return body | {"tools": [{"type": "function", "function": function}]}


async def read_chunks(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(URL, json=body | {"stream": True})
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events if event[0] != ":"]


async def read_deltas(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The deltas between the first chunk and the one with the finish reason."""
    chunks = await read_chunks(client, body)
    return [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]


async def test_call_is_part_of_the_message(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["Let me look.\n\n", CALL])]
    (choice,) = (await client.post(URL, json=body)).json()["choices"]
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "Let me look."}
    assert (call["type"], call["function"]["name"]) == ("function", "look")
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert call["id"].startswith("call_")
    assert choice["finish_reason"] == "tool_calls"


async def test_answer_of_calls_alone_has_no_content(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL, "\n", CALL])]
    (choice,) = (await client.post(URL, json=body)).json()["choices"]
    assert choice["message"]["content"] is None
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2


async def test_stream_has_the_name_first_and_then_the_arguments_in_pieces(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["Let me look.", "\n\n", *CALL])]
    content, head, *parts = await read_deltas(client, body)
    assert content == {"content": "Let me look."}
    (call,) = head["tool_calls"]
    assert call.pop("id").startswith("call_")
    assert call == {"index": 0, "type": "function", "function": {"name": "look", "arguments": ""}}
    pieces = [part["tool_calls"][0] for part in parts]
    assert len(pieces) > 1
    assert {piece["index"] for piece in pieces} == {0}
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert json.loads(arguments) == ARGUMENTS


async def test_stream_numbers_its_calls(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL, "\n", CALL])]
    deltas = await read_deltas(client, body)
    heads = [delta["tool_calls"][0] for delta in deltas if "id" in delta["tool_calls"][0]]
    assert [head["index"] for head in heads] == [0, 1]


async def test_stream_ends_with_the_reason_of_the_whole_answer(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL])]
    chunks = await read_chunks(client, body)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_reasoning_comes_before_the_calls(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[f"I could {CALL}", "\n</think>\n\n", CALL])]
    answer = (await client.post(URL, json=body | {"enable_thinking": True})).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == f"I could {CALL}"
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", [CALL[:-1], "<tool_call>\nlook\n</tool_call>", "<tool_call>"])
async def test_malformed_call_stays_text(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], stream: bool, text: str
) -> None:
    engine.scripts = [Script(steps=["So:\n\n", *text])]
    if stream:
        deltas = await read_deltas(client, body)
        assert "".join(delta["content"] for delta in deltas) == f"So:\n\n{text}"
    else:
        (choice,) = (await client.post(URL, json=body)).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": f"So:\n\n{text}"}
        assert choice["finish_reason"] == "stop"


async def test_answer_cut_after_a_call_has_the_call_and_the_reason_length(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL, "\n", CALL[:30]], finish_reason=FinishReason.LENGTH)]
    (choice,) = (await client.post(URL, json=body)).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"] == CALL[:30]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("fields", [{"tools": None}, {"tools": []}, {"tool_choice": "none"}])
async def test_calls_stay_text_without_tools_or_with_tool_choice_none(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL])]
    (choice,) = (await client.post(URL, json=body | fields)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": CALL}
    assert choice["finish_reason"] == "stop"


async def test_usage_counts_the_tokens_of_calls(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["Let me look.\n", *CALL])]
    usage = (await client.post(URL, json=body)).json()["usage"]
    assert usage["completion_tokens"] == 1 + len(CALL)


async def test_text_of_a_call_is_remembered_before_the_stream_ends(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    prompt_builder: FakePromptBuilder,
    body: dict[str, Any],
) -> None:
    engine.scripts = [Script(steps=["Hm.\n</think>\n\n", f"Look: {CALL}\n"])]
    await client.post(URL, json=body | {"enable_thinking": True})
    ((_, answer),) = prompt_builder.remembered
    assert answer.text == f"Look: {CALL}\n"
    assert (answer.content, [call.name for call in answer.calls]) == ("Look: ", ["look"])


async def test_answer_without_calls_is_not_remembered(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    await client.post(URL, json=body)
    assert prompt_builder.remembered == []


async def test_stream_has_keep_alives_while_a_call_is_generated(
    engine: FakeEngine, prompt_builder: FakePromptBuilder, settings: Settings, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL[:20], CALL[20:40], CALL[40:]])]
    app = create_app(engine, prompt_builder, settings, keep_alive_s=0)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        response = await client.post(URL, json=body | {"stream": True})
        silent = await client.post(URL, json=body)
    events = response.text.split("\n\n")
    assert [event[0] for event in events[1:4]] == [":", ":", "d"]
    assert silent.json()["object"] == "chat.completion"
