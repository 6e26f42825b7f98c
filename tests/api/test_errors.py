"""Every failure has OpenAI's body, whoever found it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.core import errors
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"


def assert_openai_error(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == code


async def test_unknown_route_has_the_body(client: httpx.AsyncClient) -> None:
    assert_openai_error(await client.get("/v1/nothing"), 404, "not_found")


async def test_wrong_method_has_the_body_and_says_what_is_allowed(
    client: httpx.AsyncClient,
) -> None:
    response = await client.get(URL)
    assert_openai_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


async def test_wrong_path_parameter_has_the_body(client: httpx.AsyncClient) -> None:
    response = await client.delete("/v1/registry/entries/first")
    assert_openai_error(response, 422, "unprocessable_body")


async def test_other_model_is_not_found(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    response = await client.post(URL, json=body | {"model": "gpt-9"})
    assert_openai_error(response, 404, "model_not_found")
    assert "fake-model" in response.json()["error"]["message"]


async def test_bug_has_the_body_and_shows_no_inside(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(before=[RuntimeError("secret path")])]
    response = await client.post(URL, json=body)
    assert_openai_error(response, 500, "internal_error")
    assert "secret" not in response.text


async def test_bug_while_building_a_prompt_has_the_body(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    prompt_builder.error = errors.InvariantBroken("no")
    assert_openai_error(await client.post(URL, json=body), 500, "invariant_broken")


async def test_engine_that_ends_without_a_last_event_is_an_error_not_a_hang(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(has_end=False)]
    assert_openai_error(await client.post(URL, json=body), 500, "invariant_broken")


async def test_too_long_prompt_tells_both_numbers(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(before=[errors.ContextTooLong(4097, 4096)])]
    response = await client.post(URL, json=body)
    assert_openai_error(response, 400, "context_length_exceeded")
    assert "4097" in response.json()["error"]["message"]
    assert "4096" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (errors.Overloaded("the queue is full", retry_after_s=2.1), 429, "server_overloaded", "3"),
        (errors.QueueTimeout("waited", retry_after_s=5.0), 503, "request_queue_timeout", "5"),
        (errors.Draining("draining"), 503, "draining", "5"),
        (errors.EngineDown("gone", retry_after_s=0.0), 503, "engine_down", "1"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_busy_engine_says_when_to_come_back(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    stream: bool,
    error: errors.KvregError,
    status: int,
    code: str,
    retry_after: str,
) -> None:
    engine.scripts = [Script(before=[error])]
    response = await client.post(URL, json=body | {"stream": stream})
    assert_openai_error(response, status, code)
    assert response.headers["retry-after"] == retry_after


@pytest.mark.parametrize("url", [URL, "/v1/messages"])
async def test_no_prompt_is_built_for_a_request_that_cannot_be_taken(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    prompt_builder: FakePromptBuilder,
    body: dict[str, Any],
    url: str,
) -> None:
    engine.is_full = True
    response = await client.post(url, json=body | {"max_tokens": 5})
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert prompt_builder.conversations == []
