"""With configured API keys, every route except the open ones requires a key."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from starlette.routing import BaseRoute, Route

from kvreg_service.api.app import create_app
from kvreg_service.api.authentication import OPEN_PATHS
from kvreg_service.settings import load_settings
from kvreg_service.testing.fake_engine import FakeEngine
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

KEYS = json.dumps(
    {"tenants": {"alpha": {"keys": ["a1"]}, "root": {"keys": ["r1"], "is_admin": True}}}
)
APP = create_app(FakeEngine(), FakePromptBuilder(), load_settings({"api_keys": KEYS}))


def routes_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from routes_of(included.routes)
            continue
        assert isinstance(route, Route), f"this test does not support routes such as {route}"
        for method in sorted(route.methods or ()):
            yield method, re.sub(r"\{[^}]*\}", "0", route.path)


ROUTES = list(routes_of(APP.routes))
GUARDED = [(method, path) for method, path in ROUTES if path not in OPEN_PATHS]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=APP)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


def test_every_api_and_admin_route_requires_a_key() -> None:
    assert {path for _, path in ROUTES if path.startswith(("/v1", "/admin"))} == {
        path for _, path in GUARDED
    }
    assert len(GUARDED) > 6


@pytest.mark.anyio
@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_route_without_a_key_returns_401(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    response = await client.request(method, path)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, path in GUARDED if path.startswith("/admin")]
)
async def test_admin_route_with_a_tenant_key_returns_403(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    response = await client.request(method, path, headers={"x-api-key": "a1"})
    assert response.status_code == 403
