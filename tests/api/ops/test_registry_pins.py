"""Pinning and dropping kept sequences, by sequence or by entry."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.core.errors import PinRefused, SessionBusy
from kvreg_service.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
WEEK_S = 7 * 24 * 3600
# Entry 0 holds sequence 7.
PINS = ["/v1/registry/sequences/7/pin", "/v1/registry/entries/0/pin"]
PLACES = ["/v1/registry/sequences/7", "/v1/registry/entries/0"]
ABSENT = ["/v1/registry/sequences/8", "/v1/registry/entries/1", "/v1/registry/entries/99"]


@pytest.mark.parametrize("url", PINS)
@pytest.mark.parametrize("ttl_s", [0.5, 60, WEEK_S])
async def test_pin_returns_the_place_of_the_sequence(
    client: httpx.AsyncClient, engine: FakeEngine, url: str, ttl_s: float
) -> None:
    response = await client.put(url, json={"ttl_s": ttl_s})
    place = response.json()
    assert (response.status_code, place["sequence_id"], place["lane"]) == (200, 7, None)
    assert (place["entry"]["entry_id"], place["entry"]["pinned_for_s"]) == (0, ttl_s)
    assert engine.pins == {7: ttl_s}


@pytest.mark.parametrize("url", PINS)
async def test_unpinned_sequence_has_no_pin(
    client: httpx.AsyncClient, engine: FakeEngine, url: str
) -> None:
    engine.pins = {7: 60.0}
    response = await client.delete(url)
    assert (response.status_code, response.json()["entry"]["pinned_for_s"]) == (200, None)
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


async def test_dropped_sequence_is_no_longer_kept(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    response = await client.delete(PLACES[0])
    assert response.json() == {"sequence_id": 7, "dropped": True}
    assert engine.kept_entries == set()


@pytest.mark.parametrize("place", ABSENT)
@pytest.mark.parametrize(("method", "rest"), [("PUT", "/pin"), ("DELETE", "/pin"), ("DELETE", "")])
async def test_unknown_sequence_or_entry_is_not_found(
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


async def test_registry_shows_anchors_totals_and_owners(client: httpx.AsyncClient) -> None:
    registry = (await client.get("/v1/registry")).json()
    assert [anchor["state"] for anchor in registry["anchors"]] == ["empty"]
    assert registry["totals"]["finished"] == 0
    assert {"tenant", "priority", "expires_in_s", "pinned_for_s"} <= set(registry["entries"][0])
    assert registry["entries"][0]["tenant"] == "default"
