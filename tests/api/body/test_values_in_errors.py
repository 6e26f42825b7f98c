"""An error shows the refused value as JSON, so that a string differs from a number."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.anyio

URL = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"max_tokens": "5"}, '(got "5")'),
        ({"max_tokens": 1.5}, "(got 1.5)"),
        ({"stream": 1}, "(got 1)"),
        ({"seed": True}, "(got true)"),
        ({"stop": [""]}, '(got "")'),
    ],
    ids=lambda x: str(x),
)
async def test_refused_value_is_shown_as_json(
    client: httpx.AsyncClient, body: dict[str, Any], fields: dict[str, Any], shown: str
) -> None:
    response = await client.post(URL, json=body | fields)
    assert shown in response.json()["error"]["message"]
