"""Pinning and dropping sessions."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.core.errors import PinRefused, SessionBusy
from kvreg_service.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
WEEK_S = 7 * 24 * 3600
# The only session is 7.
PINS = ["/v1/registry/sessions/7/pin"]
PLACES = ["/v1/registry/sessions/7"]
ABSENT = ["/v1/registry/sessions/8"]


@pytest.mark.parametrize("url", PINS)
@pytest.mark.parametrize("ttl_s", [0.5, 60, WEEK_S])
async def test_pin_returns_the_session(
    client: httpx.AsyncClient, engine: FakeEngine, url: str, ttl_s: float
) -> None:
    response = await client.put(url, json={"ttl_s": ttl_s})
    session = response.json()
    assert (response.status_code, session["session_id"], session["lane"]) == (200, 7, None)
    assert session["pinned_for_s"] == ttl_s
    assert engine.pins == {7: ttl_s}


@pytest.mark.parametrize("url", PINS)
async def test_unpinned_session_has_no_pin(
    client: httpx.AsyncClient, engine: FakeEngine, url: str
) -> None:
    engine.pins = {7: 60.0}
    response = await client.delete(url)
    assert (response.status_code, response.json()["pinned_for_s"]) == (200, None)
    assert engine.pins == {}


@pytest.mark.parametrize("url", PINS)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"ttl_s": None}, 422),
        ({"ttl_s": "60"}, 422),
        ({"ttl_s": True}, 422),
        ({"ttl_s": 0}, 400),
        ({"ttl_s": -1}, 400),
        ({"ttl_s": WEEK_S + 1}, 400),
    ],
    ids=str,
)
async def test_pin_needs_a_ttl_within_a_week(
    client: httpx.AsyncClient, engine: FakeEngine, url: str, body: dict[str, Any], status: int
) -> None:
    response = await client.put(url, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, "ttl_s")
    assert engine.pins == {}


async def test_dropped_session_is_no_longer_kept(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    response = await client.delete(PLACES[0])
    assert response.json() == {"session_id": 7, "dropped": True}
    assert not engine.has_session


@pytest.mark.parametrize("place", ABSENT)
@pytest.mark.parametrize(("method", "rest"), [("PUT", "/pin"), ("DELETE", "/pin"), ("DELETE", "")])
async def test_unknown_session_is_not_found(
    client: httpx.AsyncClient, place: str, method: str, rest: str
) -> None:
    response = await client.request(method, place + rest, json={"ttl_s": 5})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "session_not_found")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("method", "rest"), [("PUT", "/pin"), ("DELETE", "/pin"), ("DELETE", "")])
@pytest.mark.parametrize(
    "error", [SessionBusy("it runs"), PinRefused("too much")], ids=lambda error: error.code
)
async def test_change_that_the_engine_refuses_is_a_conflict(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    place: str,
    method: str,
    rest: str,
    error: SessionBusy | PinRefused,
) -> None:
    engine.change_error = error
    response = await client.request(method, place + rest, json={"ttl_s": 5})
    assert (response.status_code, response.json()["error"]["code"]) == (409, error.code)


async def test_registry_shows_states_totals_and_owners(client: httpx.AsyncClient) -> None:
    registry = (await client.get("/v1/registry")).json()
    (session,) = registry["sessions"]
    (state,) = session["states"]
    assert (state["kind"], state["position"], state["own_bytes"]) == ("turn", 65, 100)
    assert registry["totals"]["finished"] == 0
    assert {"tenant", "priority", "expires_in_s", "pinned_for_s"} <= set(session)
    assert session["tenant"] == "default"
