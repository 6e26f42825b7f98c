"""Tenants, marks and pins on a real engine, over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests.api.taught_engine import Taught

from kvreg_service.api.app import create_app
from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.scheduling.step import StepResult
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.settings import load_settings
from kvreg_service.tenants import directory

pytestmark = pytest.mark.anyio
MODEL = "fake-model"
URL = "/v1/chat/completions"
TENANTS = {
    "alpha": {"keys": ["key-of-alpha"], "entries": 1, "pages": 16, "anchors": 1},
    "beta": {"keys": ["key-of-beta"]},
    "root": {"keys": ["key-of-root"], "is_admin": True},
}
ALPHA, BETA, ROOT = ({"x-api-key": f"key-of-{name}"} for name in TENANTS)
RULES = {"role": "system", "content": "Answer in one short sentence. " * 20}


def write(path: Path, tenants: Any) -> None:
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
def app(loaded_model: LoadedModel, keys_file: Path) -> Iterator[FastAPI]:
    options = EngineOptions(
        REFERENCE_MODEL_PATH, MODEL, max_context_tokens=1024, num_pages=64, entries=3
    )
    engine, prompt_builder = build_engine(options, loaded_model)
    try:
        settings = load_settings({"served_model_name": MODEL, "api_keys_file": keys_file})
        yield create_app(engine, prompt_builder, settings)
    finally:
        engine.close()


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


async def ask(
    client: httpx.AsyncClient, headers: dict[str, str], *messages: Any, **fields: Any
) -> dict[str, Any]:
    body = {"model": MODEL, "messages": list(messages), "max_tokens": 4, "temperature": 0}
    response = await client.post(URL, json=body | fields, headers=headers)
    assert response.status_code == 200, response.text
    return dict(response.json()["usage"])


def cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def kept_sequence(client: httpx.AsyncClient, headers: dict[str, str]) -> int:
    registry = (await client.get("/v1/registry", headers=headers)).json()
    places = [*registry["lanes"], *registry["entries"]]
    (sequence_id,) = [p["sequence_id"] for p in places if p["sequence_id"] is not None]
    return int(sequence_id)


async def test_same_prompt_of_another_tenant_reuses_nothing(client: httpx.AsyncClient) -> None:
    first = await ask(client, ALPHA, RULES, user("Hi"))
    again = await ask(client, ALPHA, RULES, user("Hi"))
    other = await ask(client, BETA, RULES, user("Hi"))
    assert (cached(first), cached(other)) == (0, 0)
    assert cached(again) > 0
    assert other["kvreg"]["reuse_path"] == "full_reset"


async def test_disabled_reuse_computes_everything(client: httpx.AsyncClient) -> None:
    await ask(client, ALPHA, RULES, user("Hi"))
    again = await ask(client, ALPHA, RULES, user("Hi"), cache_prompt=False)
    assert again["kvreg"]["computed_tokens"] == again["prompt_tokens"]


async def test_sequence_of_another_tenant_looks_like_a_missing_one(
    client: httpx.AsyncClient,
) -> None:
    await ask(client, ALPHA, user("Hi"))
    sequence_id = await kept_sequence(client, ALPHA)
    for method, rest in (("PUT", "/pin"), ("DELETE", "/pin"), ("DELETE", "")):
        other, absent = [
            await client.request(
                method, f"/v1/registry/sequences/{i}{rest}", json={"ttl_s": 60}, headers=BETA
            )
            for i in (sequence_id, 999)
        ]
        assert other.status_code == absent.status_code == 404
        assert other.text.replace(f" {sequence_id} ", " 999 ") == absent.text
    assert await kept_sequence(client, ALPHA) == sequence_id


async def test_tenant_sees_nothing_of_another_tenant(client: httpx.AsyncClient) -> None:
    await ask(client, ALPHA, RULES, user("Hi"))
    before = (await client.get("/v1/registry", headers=BETA)).json()
    await ask(client, ALPHA, RULES, user("Another question"))
    after = (await client.get("/v1/registry", headers=BETA)).json()
    assert after == before
    assert sum(after["totals"]["requests_by_path"].values()) == 0


async def test_administrator_sees_and_drops_the_sequences_of_all_tenants(
    client: httpx.AsyncClient,
) -> None:
    await ask(client, ALPHA, user("Hi"))
    sequence_id = await kept_sequence(client, ROOT)
    response = await client.delete(f"/v1/registry/sequences/{sequence_id}", headers=ROOT)
    assert response.status_code == 200
    assert cached(await ask(client, ALPHA, user("Hi"))) == 0


async def test_pin_and_its_expiry_are_shown(client: httpx.AsyncClient) -> None:
    await ask(client, ALPHA, user("Hi"))
    url = f"/v1/registry/sequences/{await kept_sequence(client, ALPHA)}/pin"
    pinned = (await client.put(url, json={"ttl_s": 600}, headers=ALPHA)).json()
    assert 590 < pinned["lane"]["pinned_for_s"] <= 600
    assert pinned["lane"]["tenant"] == "alpha"
    unpinned = (await client.delete(url, headers=ALPHA)).json()
    assert unpinned["lane"]["pinned_for_s"] is None


async def test_marked_prefix_becomes_an_anchor_of_its_tenant(
    client: httpx.AsyncClient,
) -> None:
    await ask(client, ALPHA, RULES | {"cache_anchor": True}, user("Hi"))
    views = {
        name: (await client.get("/v1/registry", headers=headers)).json()["anchors"]
        for name, headers in (("alpha", ALPHA), ("beta", BETA))
    }
    assert [anchor["is_marked"] for anchor in views["alpha"] if anchor["tokens"]] == [True]
    assert [anchor for anchor in views["beta"] if anchor["tokens"]] == []


@pytest.mark.usefixtures("_looks_every_time")
async def test_quotas_that_do_not_fit_are_logged_and_change_no_key(
    client: httpx.AsyncClient, keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(keys_file, {"gamma": {"keys": ["key-of-gamma"], "entries": 1, "pages": 10_000}})
    assert (await client.get("/v1/models", headers=ALPHA)).status_code == 200
    assert (await client.get("/v1/models", headers={"x-api-key": "key-of-gamma"})).is_error
    assert "10000" in caplog.text


def test_quotas_that_do_not_fit_stop_the_start(loaded_model: LoadedModel, keys_file: Path) -> None:
    write(keys_file, {"alpha": {"keys": ["key-of-alpha"], "entries": 1, "pages": 10_000}})
    engine, prompt_builder = build_engine(
        EngineOptions(REFERENCE_MODEL_PATH, MODEL, max_context_tokens=1024, num_pages=64),
        loaded_model,
    )
    try:
        with pytest.raises(ConfigurationError, match="10000"):
            create_app(engine, prompt_builder, load_settings({"api_keys_file": keys_file}))
    finally:
        engine.close()


async def test_running_sequence_is_busy(
    taught: Taught, taught_client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_running, may_go_on = threading.Event(), threading.Event()

    def hold(_result: StepResult) -> None:
        is_running.set()
        may_go_on.wait(10)

    monkeypatch.setattr(taught.teacher, "correct", hold)
    body = {"model": MODEL, "messages": [user("Hi")], "max_tokens": 2}
    answer = asyncio.create_task(taught_client.post(URL, json=body))
    try:
        assert await asyncio.to_thread(is_running.wait, 10)
        place = f"/v1/registry/sequences/{taught.engine.snapshot().lanes[0].sequence_id}"
        for method, rest in (("PUT", "/pin"), ("DELETE", "/pin"), ("DELETE", "")):
            response = await taught_client.request(method, place + rest, json={"ttl_s": 5})
            assert (response.status_code, response.json()["error"]["code"]) == (409, "session_busy")
    finally:
        may_go_on.set()
    assert (await answer).status_code == 200
