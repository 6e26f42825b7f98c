"""Authentication by API key, its error responses, and the tenant of a request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI

from kvreg_service.api.app import create_app
from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.states.quota import Quota
from kvreg_service.settings import load_settings
from kvreg_service.tenants import directory
from kvreg_service.testing.fake_engine import FakeEngine, Gate, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder
from kvreg_service.testing.http_server import running_server

pytestmark = pytest.mark.anyio
MODEL = "fake-model"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"

TENANTS: dict[str, Any] = {
    "alpha": {"keys": ["key-of-alpha"], "entries": 1, "pages": 4},
    "beta": {"keys": ["key-of-beta"]},
    "root": {"keys": ["key-of-root"], "is_admin": True},
}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def write(path: Path, tenants: dict[str, Any]) -> None:
    path.write_text(json.dumps({"tenants": tenants}))


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write(path, TENANTS)
    return path


@pytest.fixture
def _looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "POLL_INTERVAL_S", 0.0)


@pytest.fixture
def app(engine: FakeEngine, prompt_builder: FakePromptBuilder, keys_file: Path) -> FastAPI:
    settings = load_settings({"served_model_name": MODEL, "api_keys_file": keys_file})
    return create_app(engine, prompt_builder, settings)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


@pytest.fixture
def base_url(app: FastAPI) -> Iterator[str]:
    with running_server(app) as url:
        yield url


@pytest.fixture
def message(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": 5}


@pytest.mark.parametrize(
    "headers",
    [
        bearer("key-of-alpha"),
        {"Authorization": "bearer   key-of-alpha "},
        {"x-api-key": "key-of-alpha"},
        bearer("key-of-alpha") | {"x-api-key": "key-of-alpha"},
        bearer("key-of-alpha") | {"x-api-key": ""},
        {"Authorization": "Bearer ", "x-api-key": "key-of-alpha"},
        {"Authorization": "", "x-api-key": "key-of-alpha"},
    ],
    ids=str,
)
@pytest.mark.parametrize("url", [CHAT, MESSAGES])
async def test_key_is_accepted_in_either_header(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    message: dict[str, Any],
    headers: dict[str, str],
    url: str,
) -> None:
    response = await client.post(url, json=message, headers=headers)
    assert response.status_code == 200
    assert [request.tenant for request in engine.requests] == ["alpha"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("unknown"),
        bearer("key-of-alph"),
        bearer("key-of-alpha2"),
        bearer("KEY-OF-ALPHA"),
        {"Authorization": "key-of-alpha"},
        {"Authorization": "Basic key-of-alpha"},
        {"Authorization": "Basic eDp5", "x-api-key": "key-of-alpha"},
        {"x-api-key": "Bearer key-of-alpha"},
        bearer("key-of-alpha") | {"x-api-key": "key-of-beta"},
        bearer("key-of-alpha") | {"x-api-key": "unknown"},
    ],
    ids=str,
)
async def test_anything_else_is_unauthorized(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], headers: dict[str, str]
) -> None:
    response = await client.post(CHAT, json=body, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert engine.requests == []


async def test_repeated_header_with_different_keys_is_unauthorized(
    client: httpx.AsyncClient,
) -> None:
    headers = [("x-api-key", "key-of-alpha"), ("x-api-key", "key-of-beta")]
    assert (await client.get("/v1/models", headers=headers)).status_code == 401


async def test_header_that_is_not_ascii_is_unauthorized(client: httpx.AsyncClient) -> None:
    headers = {b"x-api-key": "schl\u00fcssel".encode("latin-1")}
    response = await client.get("/v1/models", headers=headers)  # type: ignore[arg-type]
    assert response.status_code == 401


async def test_missing_and_unknown_key_get_the_same_response_without_the_key(
    client: httpx.AsyncClient,
) -> None:
    missing = await client.get("/v1/models")
    unknown = await client.get("/v1/models", headers=bearer("sk-typo"))
    assert missing.content == unknown.content
    assert "sk-typo" not in str(unknown.headers)


async def test_refusal_has_the_error_format_of_the_route(client: httpx.AsyncClient) -> None:
    chat = (await client.post(CHAT)).json()
    assert chat["error"]["type"] == "authentication_error"
    message = (await client.post(MESSAGES)).json()
    assert (message["type"], message["error"]["type"]) == ("error", "authentication_error")
    assert message["error"]["details"]["error_code"] == "invalid_api_key"


async def test_body_of_an_unauthorized_request_is_not_read(app: FastAPI) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "headers": [(b"host", b"kvreg")],
        "query_string": b"",
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/health", "/openapi.json"])
async def test_probes_and_document_need_no_key(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/nothing", "/", "/livez/", "/admin", "/V1/models"])
async def test_unknown_paths_are_unauthorized_without_a_key(
    client: httpx.AsyncClient, path: str
) -> None:
    assert (await client.get(path)).status_code == 401


@pytest.mark.parametrize("path", ["/admin/drain", "/admin/fit", "/admin", "/%61dmin/drain"])
async def test_admin_routes_are_for_administrators(
    client: httpx.AsyncClient, engine: FakeEngine, path: str
) -> None:
    response = await client.post(path, headers=bearer("key-of-alpha"))
    assert (response.status_code, response.json()["error"]["code"]) == (403, "permission_denied")
    assert not engine.is_draining


async def test_administrator_may_drain(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.post("/admin/drain", headers=bearer("key-of-root"))
    assert response.status_code == 202
    assert engine.is_draining


@pytest.mark.parametrize(
    "fields",
    [{"tenant": "alpha"}, {"user": "alpha"}, {"metadata": {"tenant": "alpha", "user_id": "alpha"}}],
    ids=str,
)
@pytest.mark.parametrize("url", [CHAT, MESSAGES])
async def test_tenant_never_comes_from_the_body(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    message: dict[str, Any],
    fields: dict[str, Any],
    url: str,
) -> None:
    response = await client.post(url, json=message | fields, headers=bearer("key-of-beta"))
    assert response.status_code == 200
    assert [request.tenant for request in engine.requests] == ["beta"]


@pytest.mark.parametrize("url", [CHAT, MESSAGES, "/v1/messages/count_tokens"])
async def test_prompt_is_built_for_the_tenant_of_the_key(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, message: dict[str, Any], url: str
) -> None:
    await client.post(url, json=message, headers=bearer("key-of-beta"))
    assert prompt_builder.tenants == ["beta"]


async def test_tenant_sees_only_its_own_places(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.kept_tenant = "alpha"
    seen = {
        name: (await client.get("/v1/registry", headers=bearer(f"key-of-{name}"))).json()
        for name in TENANTS
    }
    assert [entry["sequence_id"] for entry in seen["alpha"]["entries"]] == [7]
    assert seen["beta"]["entries"] == []
    assert len(seen["root"]["entries"]) == 2


async def test_entry_of_another_tenant_looks_like_a_missing_one(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.kept_tenant = "alpha"
    other, absent = [
        await client.delete(f"/v1/registry/entries/{i}", headers=bearer("key-of-beta"))
        for i in (0, 1)
    ]
    assert other.status_code == absent.status_code == 404
    assert other.text.replace("0", "1") == absent.text
    assert engine.kept_entries == {0}


async def test_owner_and_administrator_may_drop_an_entry(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.kept_tenant = "alpha"
    for name in ("alpha", "root"):
        engine.kept_entries = {0}
        response = await client.delete("/v1/registry/entries/0", headers=bearer(f"key-of-{name}"))
        assert response.status_code == 200


@pytest.mark.usefixtures("_looks_every_time")
async def test_changed_key_file_applies_to_the_next_request(
    client: httpx.AsyncClient, engine: FakeEngine, keys_file: Path
) -> None:
    assert engine.quotas == {"alpha": Quota(1, 4)}
    write(keys_file, {"gamma": {"keys": ["key-of-gamma"], "entries": 2, "pages": 8}})
    assert (await client.get("/v1/models", headers=bearer("key-of-gamma"))).status_code == 200
    assert (await client.get("/v1/models", headers=bearer("key-of-alpha"))).status_code == 401
    assert engine.quotas == {"gamma": Quota(2, 8)}


def test_invalid_keys_stop_the_start(engine: FakeEngine, keys_file: Path) -> None:
    settings = load_settings({"api_keys_file": keys_file})
    keys_file.write_text('{"tenants": {"a": {"keys": [""], "pages": 1}, "b": {"entries": -1}}}')
    with pytest.raises(ConfigurationError) as caught:
        create_app(engine, FakePromptBuilder(), settings)
    for part in ("tenants.a.keys[0]", "tenants.b.entries = -1"):
        assert part in caught.value.message


async def test_document_describes_the_key_headers(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    assert document["paths"][CHAT]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert document["paths"]["/livez"]["get"]["security"] == []


def test_openai_client_with_a_wrong_key_raises_its_own_error(base_url: str) -> None:
    with (
        openai.OpenAI(base_url=f"{base_url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_anthropic_client_with_a_wrong_key_raises_its_own_error(base_url: str) -> None:
    with (
        anthropic.Anthropic(base_url=base_url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError, match="a valid API key is required"),
    ):
        client.messages.create(
            model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
        )


def test_key_of_the_openai_client_selects_its_tenant(base_url: str, engine: FakeEngine) -> None:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="key-of-alpha") as client:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    assert engine.requests[0].tenant == "alpha"


@pytest.mark.parametrize("argument", ["api_key", "auth_token"])
def test_key_of_the_anthropic_client_selects_its_tenant(
    base_url: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    arguments: dict[str, Any] = {argument: "key-of-beta"}
    with anthropic.Anthropic(base_url=base_url, **arguments) as client:
        client.messages.create(
            model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
        )
    assert engine.requests[0].tenant == "beta"


@pytest.mark.usefixtures("_looks_every_time")
def test_running_request_outlives_its_key(
    base_url: str, engine: FakeEngine, keys_file: Path
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=["Hel", gate, "lo"])]
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="key-of-alpha") as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        gate.wait_until_reached()
        write(keys_file, {})
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        gate.open()
        text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    assert text == "Hello"
