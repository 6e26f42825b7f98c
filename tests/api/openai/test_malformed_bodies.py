"""What is refused, with which status, and that the message says which field and why."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.api.openai.request import IGNORED_FIELDS, ChatRequest
from kvreg_service.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"

USER = {"role": "user", "content": "Hi"}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER | fields]}


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": ["Hi"]}, "messages.0"),
    (message(role=None), "messages.0.role"),
    (message(content=5), "messages.0.content"),
    (message(content={"text": "Hi"}), "messages.0.content"),
    (message(content=["Hi"]), "messages.0.content.0"),
    (message(content=[{"type": "text", "text": 5}]), "messages.0.content.0.text"),
    (message(content=[{"text": "Hi"}]), "messages.0.content.0.type"),
    (message(tool_calls="look"), "messages.0.tool_calls"),
    (message(tool_calls=[{"function": {}}]), "messages.0.tool_calls.0.function.name"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": True}, "stream_options"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop.0"),
    ({"seed": 1.5}, "seed"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"5": "much"}}, "logit_bias.5"),
    ({"tools": {"type": "function"}}, "tools"),
    ({"tools": ["look"]}, "tools.0"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ({"retain_prefix": "no"}, "retain_prefix"),
    ({"n": "1"}, "n"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": "3"}, "top_logprobs"),
]

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    (message(role="oracle"), "messages", "oracle"),
    (message(content=None), "messages", "content"),
    (message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), "messages", "image_url"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "got 0"),
    ({"temperature": -0.1}, "temperature", "-0.1"),
    ({"temperature": 2.5}, "temperature", "2"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_p": 1.5}, "top_p", "1.5"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"min_p": 2}, "min_p", "2"),
    ({"presence_penalty": 3}, "presence_penalty", "3"),
    ({"frequency_penalty": -3}, "frequency_penalty", "-3"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0"),
    ({"seed": 2**63}, "seed", str(2**63)),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "101"),
    ({"logit_bias": {"word": 1}}, "logit_bias", "word"),
    ({"logit_bias": {"256": 1}}, "logit_bias", "256"),
    ({"stop": ""}, "stop", "at least 1"),
    ({"stop": ["a"] * 17}, "stop", "16"),
    ({"n": 2}, "n", "one choice"),
    ({"n": 0}, "n", "got 0"),
    ({"top_logprobs": 3}, "", "logprobs"),
    ({"top_logprobs": 1, "logprobs": False}, "", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "-1"),
    ({"response_format": {"type": "json_object"}}, "response_format", "json_object"),
    ({"modalities": ["text", "audio"]}, "modalities", "text"),
    ({"audio": {"voice": "x"}}, "audio", "not served"),
    ({"web_search_options": {}}, "web_search_options", "not served"),
    ({"functions": []}, "functions", "tools"),
    ({"function_call": "auto"}, "function_call", "tool_choice"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "custom"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", "name"),
    ({"tool_choice": "required"}, "tool_choice", "required"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "auto"),
    ({"tool_choice": 5}, "tool_choice", "auto"),
    ({"chat_template_kwargs": {"enable_thinking": "x"}}, "chat_template_kwargs", "enable_thinking"),
    ({"retain_prefix": True, "prompt_cache_read_only": True}, "", "contradict"),
    ({"cache_ttl_s": 0}, "cache_ttl_s", "0"),
    ({"priority": 1001}, "priority", "1001"),
]


@pytest.mark.parametrize(("fields", "param"), MALFORMED, ids=lambda x: str(x)[:40])
async def test_wrong_type_is_unprocessable_and_names_the_field(
    client: httpx.AsyncClient, body: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    response = await client.post(URL, json=body | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        422,
        "unprocessable_body",
        param,
    )


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=lambda x: str(x)[:40])
async def test_value_out_of_range_is_refused_with_field_and_reason(
    client: httpx.AsyncClient,
    body: dict[str, Any],
    fields: dict[str, Any],
    param: str,
    reason: str,
) -> None:
    response = await client.post(URL, json=body | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert (error["param"] or "").startswith(param)
    assert reason in error["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b"[" * 5000,
        b'{"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "seed": NaN}',
    ],
    ids=lambda raw: repr(raw[:20]),
)
async def test_body_that_is_not_a_json_object_is_unprocessable(
    client: httpx.AsyncClient, raw: bytes
) -> None:
    response = await client.post(URL, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error"]["code"] == "unprocessable_body"


async def test_missing_fields_are_unprocessable(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json={})
    message = response.json()["error"]["message"]
    assert response.status_code == 422
    assert "model" in message
    assert "messages" in message


async def test_nan_is_not_a_temperature(client: httpx.AsyncClient) -> None:
    raw = b'{"model": "fake-model", "messages": [{"role":"user","content":""}], "temperature": NaN}'
    response = await client.post(URL, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400


async def test_form_is_not_a_body(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, data={"model": "x"})
    assert response.status_code == 422
    assert "application/json" in response.json()["error"]["message"]


async def test_text_of_a_conversation_is_not_repeated_in_an_error(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    fields = {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}, "secret"]}]}
    response = await client.post(URL, json=body | fields)
    assert response.status_code == 422
    assert "secret" not in response.text


async def test_refused_request_never_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    await client.post(URL, json=body | {"n": 2})
    assert engine.requests == []


async def test_long_list_of_problems_is_cut(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    response = await client.post(URL, json=body | {"messages": [5] * 1000})
    assert "995 more" in response.json()["error"]["message"]


@pytest.mark.parametrize("field", [*IGNORED_FIELDS, "some_field_of_tomorrow"])
async def test_fields_without_effect_are_accepted_whatever_they_hold(
    client: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    response = await client.post(URL, json=body | {field: {"any": ["thing"]}})
    assert response.status_code == 200


async def test_null_counts_as_missing(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    names = set(ChatRequest.model_fields) - {"model", "messages"}
    response = await client.post(URL, json=body | dict.fromkeys(names))
    assert response.status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": "  \n"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "assistant", "content": "a"}],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ],
        [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}],
    ],
    ids=lambda messages: str(messages)[:50],
)
async def test_unusual_conversations_are_answered(
    client: httpx.AsyncClient, body: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    response = await client.post(URL, json=body | {"messages": messages})
    assert response.status_code == 200
