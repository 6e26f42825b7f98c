"""The client parses the answers of an engine, and classes its failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import httpx
import pytest

from kvreg_operator.clients.engine import (
    RETRY_DELAY_S,
    TIMEOUT_S,
    EngineClient,
    EngineReport,
    FitAnswer,
)
from kvreg_operator.clients.errors import PermanentError, TemporaryError

SETTINGS = {"lanes": 2, "entries": 3, "current_state": "drop", "anchors": 1}
URL = "http://10.0.0.1:8000"
Answer = TypeVar("Answer")
Handler = Callable[[httpx.Request], httpx.Response]

FIT = {"fits": True, "required_bytes": 10, "available_bytes": 20, "short_by_bytes": 0}
REGISTRY = {
    "profile": {
        "model": "reference",
        "profile": "small",
        "profile_hash": "abc",
        "lanes": 2,
        "entries": 3,
        "anchors": 1,
        "current_state": "drop",
        "max_context_tokens": 4096,
    },
    "lanes": [],
    "running": 1,
    "queued": 2,
    "is_draining": True,
}


def ask(
    handler: Handler,
    send: Callable[[EngineClient], Awaitable[Answer]],
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    async def run() -> Answer:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as http:
            return await send(EngineClient(http, api_key, timeout_s))

    return asyncio.run(run())


def healthy(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=FIT if request.url.path == "/admin/fit" else REGISTRY)


def failing(status: int, code: str | None = None, **headers: str) -> Handler:
    body = {"error": {"message": "no", "code": code}} if code else {}
    return lambda _request: httpx.Response(status, json=body, headers=headers)


def report(client: EngineClient) -> Awaitable[EngineReport]:
    return client.report(URL, SETTINGS)


def test_report_holds_profile_load_and_fit() -> None:
    answer = ask(healthy, report)
    registry = answer.registry
    assert (registry.running, registry.queued, registry.is_draining) == (1, 2, True)
    assert answer.fit == FitAnswer(**FIT)
    assert registry.profile.current_state == "drop"
    assert registry.profile.entries == 3


def test_fit_request_has_the_settings() -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path, request.content))
        return healthy(request)

    ask(handler, report)
    # The fit comes first.
    assert asked[0] == (
        "POST",
        "/admin/fit",
        b'{"lanes":2,"entries":3,"current_state":"drop","anchors":1}',
    )


def test_drain_is_requested_with_its_grace() -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.raw_path.decode()))
        return httpx.Response(202, json={"draining": True, "running": 0, "queued": 0})

    ask(handler, lambda client: client.drain(URL))
    assert asked == [("POST", "/admin/drain?grace_s=30")]


def test_key_is_sent_with_every_request() -> None:
    keys = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("authorization"))
        return healthy(request)

    ask(handler, report, api_key="sk-operations")
    assert keys == ["Bearer sk-operations", "Bearer sk-operations"]


def test_key_of_no_administrator_does_not_make_an_engine_look_idle() -> None:
    # Such a key may read /v1/registry, but does not see the requests of other tenants.
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/admin"):
            return failing(403, "permission_denied")(request)
        return healthy(request)

    with pytest.raises(PermanentError, match="permission_denied"):
        ask(handler, report)


@pytest.mark.parametrize("code", ["draining", "engine_down", "unavailable"])
def test_engine_that_is_down_for_now_is_temporary(code: str) -> None:
    with pytest.raises(TemporaryError, match=code):
        ask(failing(503, code), report)


def test_delay_is_the_engine_s_retry_after() -> None:
    with pytest.raises(TemporaryError) as caught:
        ask(failing(503, "unavailable", **{"retry-after": "7"}), report)
    assert caught.value.delay_s == 7


@pytest.mark.parametrize(
    ("status", "error"),
    [(502, TemporaryError), (429, TemporaryError), (404, PermanentError), (401, PermanentError)],
)
def test_answer_without_a_code_is_classed_by_its_status(
    status: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(failing(status), report)


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout, httpx.ReadError])
def test_network_failure_is_temporary(error: type[httpx.TransportError]) -> None:
    def handler(_request: httpx.Request) -> httpx.Response:
        raise error("no")

    with pytest.raises(TemporaryError) as caught:
        ask(handler, report)
    assert caught.value.delay_s == RETRY_DELAY_S


def endless(part: bytes, pause_s: float) -> Handler:
    """Return an engine whose answer never ends."""

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield part
            await asyncio.sleep(pause_s)

    return lambda _request: httpx.Response(200, content=drip())


def test_answer_that_never_ends_is_temporary() -> None:
    with pytest.raises(TemporaryError, match="TimeoutError"):
        ask(endless(b" ", 0.01), report, timeout_s=0.1)


def test_answer_that_is_too_long_is_permanent() -> None:
    with pytest.raises(PermanentError, match="compressed, or over"):
        ask(endless(b" " * 100_000, 0), report)


def test_message_does_not_contain_a_key_that_cannot_be_sent() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        # The message of h11.
        text = f"Illegal header value {request.headers['authorization'].encode()!r}"
        raise httpx.LocalProtocolError(text)

    with pytest.raises(PermanentError, match="cannot be sent") as caught:
        ask(handler, report, api_key="sk-1\nsk-2")
    assert "sk-" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("content", [b"<html>", b"{}", b"[]"])
def test_answer_of_something_else_is_permanent(content: bytes) -> None:
    with pytest.raises(PermanentError, match="not the answer"):
        ask(lambda _request: httpx.Response(200, content=content), report)
