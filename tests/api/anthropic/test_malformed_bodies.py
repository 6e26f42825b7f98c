"""Malformed bodies that only the Messages API has: token counts, and nested blocks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.api.malformed_bodies import REFUSED, Fields, message
from tests.api.served_api import ANTHROPIC, COUNT_URL

pytestmark = pytest.mark.anyio

REFUSED_CONVERSATIONS = [
    fields
    for api, fields, param, _ in REFUSED
    if api is ANTHROPIC and param.startswith(("messages", "system"))
]


@pytest.mark.parametrize("fields", REFUSED_CONVERSATIONS, ids=lambda fields: str(fields)[:40])
async def test_counting_refuses_the_same_conversations(
    client: httpx.AsyncClient, fields: Fields
) -> None:
    response = await client.post(COUNT_URL, json=ANTHROPIC.body(**fields))
    assert ANTHROPIC.read_error(response).status == 400


async def test_counting_needs_no_limit(client: httpx.AsyncClient) -> None:
    body = ANTHROPIC.body()
    del body["max_tokens"]
    assert (await client.post(COUNT_URL, json=body)).status_code == 200
    assert (await client.post(ANTHROPIC.url, json=body)).status_code == 422


async def test_blocks_that_are_nested_deeply_are_no_server_error(client: httpx.AsyncClient) -> None:
    nested: Any = "Hi"
    for _ in range(60):
        nested = [{"type": "tool_result", "tool_use_id": "t", "content": nested}]
    response = await client.post(ANTHROPIC.url, json=ANTHROPIC.body(**message(content=nested)))
    assert 400 <= response.status_code < 500
