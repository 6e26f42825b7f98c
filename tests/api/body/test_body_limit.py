"""A body over the limit is refused while it is read, with and without Content-Length."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvreg_service.settings import Settings

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"
HEADERS = {"content-type": "application/json"}


def body_of(num_bytes: int, body: dict[str, Any]) -> bytes:
    """Return a valid body of exactly this length."""
    raw = httpx.Request("POST", "http://kvreg", json=body).content
    return raw + b" " * (num_bytes - len(raw))


async def test_body_at_the_limit_is_read(
    client: httpx.AsyncClient, settings: Settings, body: dict[str, Any]
) -> None:
    raw = body_of(settings.max_body_bytes, body)
    response = await client.post(URL, content=raw, headers=HEADERS)
    assert response.status_code == 200


async def test_content_length_over_the_limit_is_too_large(
    client: httpx.AsyncClient, settings: Settings, body: dict[str, Any]
) -> None:
    raw = body_of(settings.max_body_bytes + 1, body)
    response = await client.post(URL, content=raw, headers=HEADERS)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "body_too_large")
    assert str(settings.max_body_bytes) in error["message"]


async def test_chunked_body_is_not_read_past_the_limit(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    num_sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_sent
        while True:
            num_sent += 1024
            yield b" " * 1024

    response = await client.post(URL, content=endless(), headers=HEADERS)
    assert response.status_code == 413
    assert num_sent <= settings.max_body_bytes + 2048
