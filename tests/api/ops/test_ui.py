"""The routes of the status page: files, access to the recent requests, security headers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from tests.unit.telemetry.ended_requests import FINISHED

from kvreg_service.api.app import create_app
from kvreg_service.settings import load_settings
from kvreg_service.telemetry.ui.recent_requests import RecentRequests
from kvreg_service.testing.fake_engine import FakeEngine
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
KEYS = json.dumps(
    {
        "tenants": {
            "alpha": {"keys": ["a1"]},
            "beta": {"keys": ["b1"]},
            "root": {"keys": ["r1"], "is_admin": True},
        }
    }
)
FILES = {
    "/ui": "text/html; charset=utf-8",
    "/ui/page.css": "text/css; charset=utf-8",
    "/ui/page.js": "text/javascript; charset=utf-8",
    "/ui/icon.svg": "image/svg+xml",
}


@pytest.fixture
async def locked() -> AsyncIterator[httpx.AsyncClient]:
    """A server with API keys that two tenants have used."""
    recent = RecentRequests()
    for tenant in ("alpha", "beta"):
        recent.request_ended(replace(FINISHED, tenant=tenant, request_id=f"of-{tenant}"))
    app = create_app(
        FakeEngine(), FakePromptBuilder(), load_settings({"api_keys": KEYS}), recent=recent
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


@pytest.mark.parametrize("path", FILES)
async def test_page_needs_no_key_and_has_no_data(locked: httpx.AsyncClient, path: str) -> None:
    response = await locked.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, FILES[path])
    assert not any(name in response.text for name in ("alpha", "beta", "fake"))


@pytest.mark.parametrize("path", FILES)
async def test_policy_allows_the_page_its_own_server_only(
    client: httpx.AsyncClient, path: str
) -> None:
    response = await client.get(path)
    policy = dict(
        part.strip().split(" ", 1)
        for part in response.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", FILES)
async def test_page_names_no_other_server(client: httpx.AsyncClient, path: str) -> None:
    text = (await client.get(path)).text.replace('"http://www.w3.org/2000/svg"', "")
    assert "//" not in text.replace("\n// ", "").replace("  // ", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_page_is_read_only(client: httpx.AsyncClient, method: str) -> None:
    for path in (*FILES, "/v1/registry/requests"):
        assert (await client.request(method, path)).status_code == 405


async def test_requests_need_a_key(locked: httpx.AsyncClient) -> None:
    assert (await locked.get("/v1/registry/requests")).status_code == 401


@pytest.mark.parametrize(
    ("key", "seen"),
    [("a1", ["of-alpha"]), ("b1", ["of-beta"]), ("r1", ["of-beta", "of-alpha"])],
)
async def test_tenant_sees_its_own_requests_and_an_administrator_all(
    locked: httpx.AsyncClient, key: str, seen: list[str]
) -> None:
    response = await locked.get("/v1/registry/requests", headers={"x-api-key": key})
    shown = response.json()
    assert [request["request_id"] for request in shown["requests"]] == seen
    assert shown["counts"]["requests"] == len(seen)
