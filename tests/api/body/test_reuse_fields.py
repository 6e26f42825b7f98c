"""The fields and headers for reuse and retention."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from kvreg_service.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
URLS = ["/v1/chat/completions", "/v1/messages"]
RETAIN, REUSE = "x-kvreg-retain-prefix", "x-kvreg-reuse-prefix"
TTL, PRIORITY = "x-kvreg-cache-ttl-s", "x-kvreg-priority"


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": 5}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("fields", "may_reuse"),
    [
        ({}, True),
        ({"cache_prompt": None}, True),
        ({"cache_prompt": True}, True),
        ({"cache_prompt": False}, False),
    ],
    ids=str,
)
async def test_reuse_can_be_disabled(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    url: str,
    fields: dict[str, Any],
    may_reuse: bool,
) -> None:
    assert (await client.post(url, json=body | fields)).status_code == 200
    assert engine.requests[0].cache_policy.may_reuse is may_reuse


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("headers", "fields", "expected"),
    [
        ({}, {}, (True, True, None, 0)),
        ({RETAIN: "false"}, {}, (False, True, None, 0)),
        ({REUSE: "False"}, {}, (True, False, None, 0)),
        ({TTL: "60"}, {}, (True, True, 60.0, 0)),
        ({TTL: "1e3"}, {}, (True, True, 1000.0, 0)),
        ({TTL: "0.5", PRIORITY: "-3"}, {}, (True, True, 0.5, -3)),
        ({PRIORITY: "1000"}, {}, (True, True, None, 1000)),
        ({RETAIN: "false"}, {"retain_prefix": True}, (True, True, None, 0)),
        ({RETAIN: "true"}, {"retain_prefix": False}, (False, True, None, 0)),
        ({RETAIN: "true"}, {"prompt_cache_read_only": True}, (False, True, None, 0)),
        ({RETAIN: "false"}, {"prompt_cache_read_only": False}, (True, True, None, 0)),
        ({REUSE: "false"}, {"cache_prompt": True}, (True, True, None, 0)),
        ({REUSE: "true"}, {"cache_prompt": False}, (True, False, None, 0)),
        ({TTL: "60", PRIORITY: "1"}, {"cache_ttl_s": 5, "priority": 0}, (True, True, 5.0, 0)),
    ],
    ids=str,
)
async def test_header_applies_if_the_body_has_no_value(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    url: str,
    headers: dict[str, str],
    fields: dict[str, Any],
    expected: tuple[bool, bool, float | None, int],
) -> None:
    response = await client.post(url, json=body | fields, headers=headers)
    assert response.status_code == 200
    (policy,) = (request.cache_policy for request in engine.requests)
    assert (policy.retain, policy.may_reuse, policy.ttl_s, policy.priority) == expected


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        (RETAIN, "no", "true or false"),
        (RETAIN, "", "true or false"),
        (REUSE, "0", "true or false"),
        (TTL, "0", "2592000"),
        (TTL, "-1", "2592000"),
        (TTL, "2592001", "2592000"),
        (TTL, "nan", "2592000"),
        (TTL, "1_000", "2592000"),
        (TTL, "1e999", "2592000"),
        (PRIORITY, "1001", "1000"),
        (PRIORITY, "-1001", "1000"),
        (PRIORITY, "1.5", "1000"),
        (PRIORITY, "9" * 5000, "1000"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_invalid_header_is_refused_with_name_value_and_limit(
    client: httpx.AsyncClient, body: dict[str, Any], url: str, name: str, value: str, limit: str
) -> None:
    response = await client.post(url, json=body, headers={name: value})
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert name in message
    assert value[:10] in message
    assert limit in message


def test_client_can_send_headers_with_every_request(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    client = openai_client.with_options(default_headers={RETAIN: "false"})
    client.chat.completions.create(model="fake-model", messages=[{"role": "user", "content": "Hi"}])
    assert engine.requests[0].cache_policy.retain is False
