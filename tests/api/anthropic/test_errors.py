"""Every failure of the Messages API has Anthropic's body and the same status as elsewhere."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.core import errors
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
URL = "/v1/messages"


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": 100}


def assert_error(response: httpx.Response, status: int, kind: str, code: str) -> None:
    answer = response.json()
    assert response.status_code == status
    assert answer["type"] == "error"
    assert set(answer["error"]) == {"type", "message", "details"}
    assert (answer["error"]["type"], answer["error"]["details"]["error_code"]) == (kind, code)


async def test_unknown_route_below_has_the_body(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/messages/batches")
    assert_error(response, 404, "not_found_error", "not_found")


async def test_wrong_method_has_the_body_and_says_what_is_allowed(
    client: httpx.AsyncClient,
) -> None:
    response = await client.get(URL)
    assert_error(response, 405, "invalid_request_error", "method_not_allowed")
    assert response.headers["allow"] == "POST"


async def test_other_model_is_not_found(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    response = await client.post(URL, json=body | {"model": "gpt-9"})
    assert_error(response, 404, "not_found_error", "model_not_found")


async def test_other_model_is_not_counted_for(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    response = await client.post(f"{URL}/count_tokens", json=body | {"model": "gpt-9"})
    assert_error(response, 404, "not_found_error", "model_not_found")


async def test_bug_has_the_body_and_shows_no_inside(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(before=[RuntimeError("secret path")])]
    response = await client.post(URL, json=body)
    assert_error(response, 500, "api_error", "internal_error")
    assert "secret" not in response.text


@pytest.mark.parametrize("path", [URL, f"{URL}/count_tokens"])
async def test_conversation_that_the_template_refuses_is_the_clients_error(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any], path: str
) -> None:
    prompt_builder.error = errors.InvalidRequest("roles must alternate", param="messages")
    response = await client.post(path, json=body)
    assert_error(response, 400, "invalid_request_error", "invalid_request")
    assert response.json()["error"]["message"] == "roles must alternate"


async def test_body_over_the_limit_is_too_large(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    fields = {"messages": [{"role": "user", "content": "x" * 70_000}]}
    response = await client.post(URL, json=body | fields)
    assert_error(response, 413, "request_too_large", "body_too_large")


async def test_too_long_prompt_tells_both_numbers(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(before=[errors.ContextTooLong(4097, 4096)])]
    response = await client.post(URL, json=body)
    assert_error(response, 400, "invalid_request_error", "context_length_exceeded")
    assert "4097" in response.json()["error"]["message"]
    assert "4096" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after"),
    [
        (errors.Overloaded("the queue is full", retry_after_s=2.1), 429, "rate_limit_error", "3"),
        (errors.QueueTimeout("waited", retry_after_s=5.0), 503, "overloaded_error", "5"),
        (errors.Draining("draining"), 503, "overloaded_error", "5"),
        (errors.EngineDown("gone", retry_after_s=0.0), 503, "overloaded_error", "1"),
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
    kind: str,
    retry_after: str,
) -> None:
    engine.scripts = [Script(before=[error])]
    response = await client.post(URL, json=body | {"stream": stream})
    assert_error(response, status, kind, error.code)
    assert response.headers["retry-after"] == retry_after
