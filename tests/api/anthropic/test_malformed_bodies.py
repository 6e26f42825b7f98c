"""What the Messages API refuses, with which status, and that it says which field and why."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.api.anthropic.request import IGNORED_FIELDS, MessagesRequest
from kvreg_service.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
URL = "/v1/messages"
COUNT_URL = "/v1/messages/count_tokens"
USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": 100}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER | fields]}


def block(**fields: Any) -> dict[str, Any]:
    return message(content=[fields])


def answer(*blocks: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": list(blocks)}, USER]}


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": ["Hi"]}, "messages.0"),
    (message(content=None), "messages.0.content"),
    (message(content=5), "messages.0.content"),
    (message(content={"type": "text", "text": "Hi"}), "messages.0.content"),
    (message(content=["Hi"]), "messages.0.content.0"),
    (message(content=[None]), "messages.0.content.0"),
    (block(text="Hi"), "messages.0.content.0.type"),
    (block(type=5, text="Hi"), "messages.0.content.0.type"),
    (block(type=["text"], text="Hi"), "messages.0.content.0.type"),
    (block(type="text"), "messages.0.content.0.text"),
    (block(type="text", text=None), "messages.0.content.0.text"),
    (block(type="tool_result"), "messages.0.content.0.tool_use_id"),
    (block(type="tool_result", tool_use_id=1), "messages.0.content.0.tool_use_id"),
    (block(type="tool_result", tool_use_id="t", content=5), "messages.0.content.0.content"),
    (block(type="tool_result", tool_use_id="t", content=[5]), "messages.0.content.0.content.0"),
    (answer({"type": "tool_use", "id": "t", "name": "f"}), "messages.1.content.0.input"),
    (
        answer({"type": "tool_use", "id": "t", "name": "f", "input": "{}"}),
        "messages.1.content.0.input",
    ),
    (answer({"type": "tool_use", "name": "f", "input": {}}), "messages.1.content.0.id"),
    (answer({"type": "thinking"}), "messages.1.content.0.thinking"),
    ({"system": 5}, "system"),
    ({"system": {"type": "text", "text": "x"}}, "system"),
    ({"system": ["x"]}, "system.0"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"stop_sequences": [5]}, "stop_sequences.0"),
    ({"stream": "yes"}, "stream"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_k": 1.5}, "top_k"),
    ({"tools": TOOL}, "tools"),
    ({"tools": ["look"]}, "tools.0"),
    ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
    ({"tools": [{"name": 5, "input_schema": {}}]}, "tools.0.name"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools.0.input_schema"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"thinking": True}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
    ({"output_config": "low"}, "output_config"),
    ({"retain_prefix": "no"}, "retain_prefix"),
    ({"mcp_servers": {}}, "mcp_servers"),
]

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    (message(role="oracle"), "messages.0.role", "user"),
    (message(role="tool"), "messages.0.role", "user"),
    (message(content=[IMAGE]), "messages[0].content[0].type", "image"),
    (block(type="document", source={}), "messages[0].content[0].type", "document"),
    (block(type="tool_use", id="t", name="f", input={}), "messages[0].content[0].type", "tool_use"),
    (block(type="thinking", thinking="x"), "messages[0].content[0].type", "thinking"),
    (
        block(type="tool_result", tool_use_id="t", content=[IMAGE]),
        "messages[0].content[0].content[0].type",
        "image",
    ),
    (answer({"type": "text", "text": "a"}, IMAGE), "messages[1].content[1].type", "image"),
    (answer({"type": "tool_result", "tool_use_id": "t"}), "messages[1].content[0].type", "result"),
    (answer({"type": "server_tool_use", "id": "t"}), "messages[1].content[0].type", "server"),
    (
        answer({"type": "tool_use", "id": "t", "name": "", "input": {}}),
        "messages.1.content.0.name",
        "at least 1",
    ),
    ({"system": [IMAGE]}, "system[0].type", "image"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"stop_sequences": [""]}, "stop_sequences.0", "at least 1"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences", "16"),
    ({"temperature": 2.5}, "temperature", "2"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools", "web_search"),
    ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools", "bash"),
    ({"tools": [{"name": "look"}]}, "tools", "input_schema"),
    ({"tools": [{"name": "", "input_schema": {}}]}, "tools.0.name", "at least 1"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "any"),
    ({"tool_choice": {"type": "tool", "name": "look"}}, "tool_choice", "tool"),
    ({"thinking": {"type": "sometimes"}}, "thinking", "sometimes"),
    ({"thinking": {"type": "between_tools"}}, "thinking", "between_tools"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config", "format"),
    ({"output_format": {"type": "json_schema"}}, "output_format", "not served"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "not served"),
    ({"chat_template_kwargs": {"enable_thinking": "x"}}, "chat_template_kwargs", "enable_thinking"),
    ({"retain_prefix": True, "prompt_cache_read_only": True}, "", "contradict"),
    ({"cache_ttl_s": 0}, "cache_ttl_s", "0"),
]


def short(value: object) -> str:
    return str(value)[:40]


@pytest.mark.parametrize(("fields", "param"), MALFORMED, ids=short)
async def test_wrong_type_is_unprocessable_and_names_the_field(
    client: httpx.AsyncClient, body: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    response = await client.post(URL, json=body | fields)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (422, "invalid_request_error")
    assert error["details"] == {"error_code": "unprocessable_body", "param": param}
    assert param in error["message"]


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=short)
async def test_value_that_is_not_served_is_refused_with_field_and_reason(
    client: httpx.AsyncClient, body: dict[str, Any], fields: dict[str, Any], param: str, reason: str
) -> None:
    response = await client.post(URL, json=body | fields)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["details"] == {"error_code": "invalid_request", "param": param or None}
    assert reason in error["message"]


@pytest.mark.parametrize("fields", [row[0] for row in REFUSED[:13]], ids=short)
async def test_counting_refuses_the_same_conversations(
    client: httpx.AsyncClient, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    response = await client.post(COUNT_URL, json=body | fields)
    assert (response.status_code, response.json()["type"]) == (400, "error")


async def test_counting_needs_no_limit(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    del body["max_tokens"]
    assert (await client.post(COUNT_URL, json=body)).status_code == 200
    assert (await client.post(URL, json=body)).status_code == 422


@pytest.mark.parametrize("url", [URL, COUNT_URL])
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b"[" * 5000], ids=repr
)
async def test_body_that_is_not_a_json_object_is_unprocessable(
    client: httpx.AsyncClient, url: str, raw: bytes
) -> None:
    response = await client.post(url, content=raw, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["type"]) == (422, "error")


async def test_blocks_that_are_nested_deeply_are_no_server_error(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    nested: Any = "Hi"
    for _ in range(60):
        nested = [{"type": "tool_result", "tool_use_id": "t", "content": nested}]
    response = await client.post(URL, json=body | message(content=nested))
    assert 400 <= response.status_code < 500


@pytest.mark.parametrize("place", ["messages", "system"])
async def test_text_of_a_conversation_is_not_repeated_in_an_error(
    client: httpx.AsyncClient, body: dict[str, Any], place: str
) -> None:
    fields = {"system": ["secret"]} if place == "system" else message(content=["secret"])
    response = await client.post(URL, json=body | fields)
    assert response.status_code == 422
    assert "secret" not in response.text


async def test_refused_request_never_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    await client.post(URL, json=body | message(content=[IMAGE]))
    assert engine.requests == []


@pytest.mark.parametrize("field", [*IGNORED_FIELDS, "some_field_of_tomorrow"])
async def test_fields_without_effect_are_accepted_whatever_they_hold(
    client: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    response = await client.post(URL, json=body | {field: {"any": ["thing"]}})
    assert response.status_code == 200


async def test_null_counts_as_missing(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    names = set(MessagesRequest.model_fields) - {"model", "messages", "max_tokens"}
    response = await client.post(URL, json=body | dict.fromkeys(names))
    assert response.status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": [{"type": "text", "text": ""}]}],
        [USER, USER],
        [{"role": "assistant", "content": "Hello."}],
        [{"role": "assistant", "content": []}, USER],
        [{"role": "system", "content": "Be kind."}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
    ],
    ids=short,
)
async def test_unusual_conversations_are_answered(
    client: httpx.AsyncClient, body: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    response = await client.post(URL, json=body | {"messages": messages})
    assert response.status_code == 200
