"""Shutdown of a server: signals drain the engine, and running requests finish."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from kvreg_service.api.server import DrainingServer, listen, url_of
from kvreg_service.testing.fake_engine import FakeEngine, Gate, Script

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"


@dataclass
class Serving:
    """A server in this event loop, and a client."""

    client: httpx.AsyncClient
    ended: asyncio.Task[None]

    def signal(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def drain_timeout_s() -> float:
    return 30.0


@pytest.fixture
async def serving(
    app: FastAPI, engine: FakeEngine, drain_timeout_s: float
) -> AsyncIterator[Serving]:
    listener = listen("127.0.0.1", 0)
    server = DrainingServer(app, engine, drain_timeout_s=drain_timeout_s)
    ended = asyncio.ensure_future(server.serve([listener]))
    async with httpx.AsyncClient(base_url=url_of(listener)) as client:
        await client.get("/livez")
        yield Serving(client, ended)
    if not ended.done():
        server.should_exit = True
    await ended


async def test_signal_stops_an_idle_server(serving: Serving, engine: FakeEngine) -> None:
    serving.signal()
    await asyncio.wait_for(serving.ended, 10)
    assert engine.is_draining


async def test_running_request_finishes_before_the_exit(
    serving: Serving, engine: FakeEngine, body: dict[str, Any]
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=["Hel", gate, "lo"])]
    answer = asyncio.ensure_future(serving.client.post(URL, json=body | {"stream": True}))
    await asyncio.to_thread(gate.wait_until_reached)
    serving.signal()
    refused = await serving.client.get("/readyz")
    gate.open()
    text = (await answer).text
    await asyncio.wait_for(serving.ended, 10)
    assert refused.status_code == 503
    assert text.endswith("data: [DONE]\n\n")


async def test_draining_server_is_alive_and_refuses_new_requests(
    serving: Serving, engine: FakeEngine, body: dict[str, Any]
) -> None:
    gate = Gate()
    engine.scripts = [Script(before=[gate])]
    waiting = asyncio.ensure_future(serving.client.post(URL, json=body))
    await asyncio.to_thread(gate.wait_until_reached)
    serving.signal()
    alive = await serving.client.get("/livez")
    refused = await serving.client.post(URL, json=body)
    gate.open()
    assert (await waiting).status_code == 200
    assert alive.status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in refused.headers


@pytest.mark.parametrize("drain_timeout_s", [0.0])
async def test_request_over_the_drain_timeout_ends_with_an_error_event(
    serving: Serving, engine: FakeEngine, body: dict[str, Any]
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=["Hel", gate])]
    answer = asyncio.ensure_future(serving.client.post(URL, json=body | {"stream": True}))
    await asyncio.to_thread(gate.wait_until_reached)
    serving.signal()
    last = (await answer).text.rstrip().rpartition("\n\n")[2]
    await asyncio.wait_for(serving.ended, 10)
    name, _, data = last.partition("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "engine_down"


def test_url_has_the_chosen_port() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert url_of(listener) == f"http://127.0.0.1:{port}"


def test_port_in_use_is_an_error() -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", listener.getsockname()[1])


async def test_draining_server_closes_the_connection_after_its_response(
    serving: Serving, engine: FakeEngine
) -> None:
    url = serving.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    engine.drain(grace_s=60)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: engine\r\n\r\n")
    # Read to EOF, which an open connection would never reach.
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
