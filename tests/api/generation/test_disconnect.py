"""A disconnect ends the request at once, in every phase, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from starlette.types import Message

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.prompt.builder import ChatPrompt
from kvreg_service.testing.fake_engine import FakeEngine, Gate, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

URL = "/v1/chat/completions"


class Client:
    """An ASGI request whose client disconnects on demand, or stops reading."""

    def __init__(self, app: FastAPI, body: dict[str, Any]) -> None:
        self._app = app
        self._body = json.dumps(body).encode()
        self._leaves = asyncio.Event()
        self._is_body_sent = False
        self._reads = asyncio.Event()
        self._reads.set()
        self.sent: list[Message] = []
        self.has_sent = asyncio.Event()

    def stop_reading(self) -> None:
        self._reads.clear()

    def leave(self) -> None:
        self._leaves.set()

    async def receive(self) -> Message:
        if not self._is_body_sent:
            self._is_body_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.has_sent.set()
        await self._reads.wait()

    async def run(self) -> None:
        headers = [(b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": URL,
            "raw_path": URL.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await self._app(scope, self.receive, self.send)


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["before", "steps"])
async def test_disconnect_ends_the_request(
    app: FastAPI, engine: FakeEngine, body: dict[str, Any], stream: bool, place: str
) -> None:
    gate = Gate()
    script = Script(before=[gate]) if place == "before" else Script(steps=["Hel", gate, "lo"])
    engine.scripts = [script]
    client = Client(app, body | {"stream": stream})
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run())
        await asyncio.to_thread(gate.wait_until_reached)
        client.leave()
    assert engine.outcomes.get_nowait()[1] == "cancelled"


@pytest.mark.anyio
async def test_disconnect_of_a_client_that_stopped_reading_ends_the_request(
    app: FastAPI, engine: FakeEngine, body: dict[str, Any]
) -> None:
    client = Client(app, body | {"stream": True})
    client.stop_reading()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run())
        await client.has_sent.wait()
        client.leave()
    assert engine.outcomes.get_nowait()[1] == "cancelled"


@pytest.mark.anyio
async def test_disconnect_while_the_prompt_is_built_never_reaches_the_engine(
    app: FastAPI,
    engine: FakeEngine,
    prompt_builder: FakePromptBuilder,
    body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_building, may_go_on = threading.Event(), threading.Event()
    build = prompt_builder.build

    def build_slowly(conversation: Conversation, tenant: str) -> ChatPrompt:
        is_building.set()
        may_go_on.wait(10)
        return build(conversation, tenant)

    monkeypatch.setattr(prompt_builder, "build", build_slowly)
    client = Client(app, body)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run())
        await asyncio.to_thread(is_building.wait, 10)
        client.leave()
    may_go_on.set()
    assert engine.requests == []


@pytest.mark.anyio
async def test_server_that_cancels_a_stream_ends_its_request(
    app: FastAPI, engine: FakeEngine, body: dict[str, Any]
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=[gate])]
    task = asyncio.ensure_future(Client(app, body | {"stream": True}).run())
    await asyncio.to_thread(gate.wait_until_reached)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.outcomes.get_nowait()[1] == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["before", "steps"])
def test_closed_socket_ends_the_request_within_a_second(
    base_url: str, engine: FakeEngine, body: dict[str, Any], stream: bool, place: str
) -> None:
    gate = Gate()
    script = Script(before=[gate]) if place == "before" else Script(steps=["Hel", gate, "lo"])
    engine.scripts = [script]
    raw = json.dumps(body | {"stream": stream}).encode()
    head = (
        f"POST {URL} HTTP/1.1\r\nHost: kvreg\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    address = urlsplit(base_url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 0)) as connection:
        connection.sendall(head.encode() + raw)
        gate.wait_until_reached()
    assert engine.outcomes.get(timeout=1.0)[1] == "cancelled"
