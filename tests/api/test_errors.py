"""Every error has the format of its API, including those of the framework."""

from __future__ import annotations

import httpx
import pytest
from tests.api.served_api import ANTHROPIC, APIS, CONVERSATION_ROUTES, OPENAI, ServedApi

from kvreg_service.core import errors
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
EVERY_API = pytest.mark.parametrize("api", APIS, ids=str)


def assert_error(api: ServedApi, response: httpx.Response, status: int, code: str) -> None:
    error = api.read_error(response)
    assert (error.status, error.code) == (status, code)


@pytest.mark.parametrize(
    ("api", "path"), [(OPENAI, "/v1/nothing"), (ANTHROPIC, "/v1/messages/batches")], ids=str
)
async def test_unknown_route_has_the_body(
    client: httpx.AsyncClient, api: ServedApi, path: str
) -> None:
    assert_error(api, await client.get(path), 404, "not_found")


@EVERY_API
async def test_wrong_method_has_the_body_and_names_the_allowed_one(
    client: httpx.AsyncClient, api: ServedApi
) -> None:
    response = await client.get(api.url)
    assert_error(api, response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


async def test_wrong_path_parameter_has_the_body(client: httpx.AsyncClient) -> None:
    response = await client.delete("/v1/registry/entries/first")
    assert_error(OPENAI, response, 422, "unprocessable_body")


@pytest.mark.parametrize(("api", "url"), CONVERSATION_ROUTES, ids=str)
async def test_other_model_is_not_found(
    client: httpx.AsyncClient, api: ServedApi, url: str
) -> None:
    response = await client.post(url, json=api.body(model="gpt-9"))
    assert_error(api, response, 404, "model_not_found")
    assert "fake-model" in api.read_error(response).message


@EVERY_API
async def test_bug_has_the_body_without_its_message(
    client: httpx.AsyncClient, engine: FakeEngine, api: ServedApi
) -> None:
    engine.scripts = [Script(before=[RuntimeError("secret path")])]
    response = await client.post(api.url, json=api.body())
    assert_error(api, response, 500, "internal_error")
    assert "secret" not in response.text


@EVERY_API
async def test_bug_while_building_a_prompt_has_the_body(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, api: ServedApi
) -> None:
    prompt_builder.error = errors.InvariantBroken("no")
    assert_error(api, await client.post(api.url, json=api.body()), 500, "invariant_broken")


@pytest.mark.parametrize(("api", "url"), CONVERSATION_ROUTES, ids=str)
async def test_conversation_that_the_template_refuses_is_the_clients_error(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, api: ServedApi, url: str
) -> None:
    prompt_builder.error = errors.InvalidRequest("roles must alternate", param="messages")
    response = await client.post(url, json=api.body())
    assert_error(api, response, 400, "invalid_request")
    assert api.read_error(response).message == "roles must alternate"


@EVERY_API
async def test_engine_that_ends_without_a_last_event_is_an_error_not_a_hang(
    client: httpx.AsyncClient, engine: FakeEngine, api: ServedApi
) -> None:
    engine.scripts = [Script(has_end=False)]
    assert_error(api, await client.post(api.url, json=api.body()), 500, "invariant_broken")


@EVERY_API
async def test_body_over_the_limit_is_too_large(client: httpx.AsyncClient, api: ServedApi) -> None:
    body = api.body(messages=[{"role": "user", "content": "x" * 70_000}])
    assert_error(api, await client.post(api.url, json=body), 413, "body_too_large")


@EVERY_API
async def test_too_long_prompt_names_both_numbers(
    client: httpx.AsyncClient, engine: FakeEngine, api: ServedApi
) -> None:
    engine.scripts = [Script(before=[errors.ContextTooLong(4097, 4096)])]
    response = await client.post(api.url, json=api.body())
    assert_error(api, response, 400, "context_length_exceeded")
    message = api.read_error(response).message
    assert "4097" in message
    assert "4096" in message


@EVERY_API
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
async def test_busy_engine_sends_retry_after(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    api: ServedApi,
    stream: bool,
    error: errors.KvregError,
    status: int,
    code: str,
    retry_after: str,
) -> None:
    engine.scripts = [Script(before=[error])]
    response = await client.post(api.url, json=api.body(stream=stream))
    assert_error(api, response, status, code)
    assert response.headers["retry-after"] == retry_after


@EVERY_API
async def test_full_queue_refuses_a_request_before_its_prompt_is_built(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    prompt_builder: FakePromptBuilder,
    api: ServedApi,
) -> None:
    engine.is_full = True
    response = await client.post(api.url, json=api.body(max_tokens=5))
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert prompt_builder.conversations == []
