"""Models, probes, the registry, drain, fit, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.testing.fake_engine import FAKE_PROFILE, FakeEngine

pytestmark = pytest.mark.anyio


async def test_models_lists_the_served_model(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["fake-model"]
    assert listed["data"][0]["max_model_len"] == FAKE_PROFILE.max_context_tokens


async def test_one_model_is_described_as_in_the_list(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()["data"][0]
    assert (await client.get("/v1/models/fake-model")).json() == listed


async def test_other_model_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/some/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, {"livez": 200, "startupz": 200, "readyz": 200, "health": 200}),
        (
            {"is_draining": True},
            {"livez": 200, "startupz": 200, "readyz": 503, "health": 200},
        ),
        ({"is_sound": False}, {"livez": 200, "startupz": 200, "readyz": 503, "health": 503}),
        ({"is_alive": False}, {"livez": 503, "startupz": 503, "readyz": 503, "health": 503}),
    ],
    ids=str,
)
async def test_probes_follow_the_state_of_the_engine(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    state: dict[str, bool],
    expected: dict[str, int],
) -> None:
    for name, value in state.items():
        setattr(engine, name, value)
    seen = {name: (await client.get(f"/{name}")).status_code for name in expected}
    assert seen == expected


@pytest.mark.parametrize("path", ["/livez", "/startupz", "/readyz", "/health"])
@pytest.mark.parametrize(("is_alive", "status"), [(True, 200), (False, 503)])
def test_probes_support_head(
    base_url: str, engine: FakeEngine, path: str, is_alive: bool, status: int
) -> None:
    engine.is_alive = is_alive
    response = httpx.head(base_url + path)
    assert (response.status_code, response.content) == (status, b"")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake-model"])
async def test_models_have_the_format_of_the_api(client: httpx.AsyncClient, path: str) -> None:
    body = (await client.get(path, headers={"anthropic-version": "2023-06-01"})).json()
    if path == "/v1/models":
        assert (body["has_more"], body["first_id"], body["last_id"]) == (
            False,
            "fake-model",
            "fake-model",
        )
        (body,) = body["data"]
    assert {**body, "created_at": None} == {
        "type": "model",
        "id": "fake-model",
        "display_name": "fake-model",
        "created_at": None,
    }


async def test_missing_model_has_the_error_format_of_the_api(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/x", headers={"anthropic-version": "2023-06-01"})
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


async def test_failing_probe_has_the_error_format(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.is_draining = True
    response = await client.get("/readyz")
    assert response.json()["error"]["code"] == "draining"
    assert "retry-after" in response.headers


async def test_registry_shows_lanes_entries_pools_and_profile(client: httpx.AsyncClient) -> None:
    registry = (await client.get("/v1/registry")).json()
    assert registry["lanes"][0]["state"] == "empty"
    assert [entry["state"] for entry in registry["entries"]] == ["kept", "empty"]
    assert registry["entries"][0]["frontier"] is None
    assert registry["pools"] == [{"name": "main", "total": 8, "free": 6, "referenced": 2}]
    assert registry["profile"]["current_state"] == "keep"


async def test_dropped_entry_keeps_nothing(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.delete("/v1/registry/entries/0")
    assert response.json() == {"entry_id": 0, "dropped": True}
    assert engine.kept_entries == set()


async def test_empty_entry_cannot_be_dropped(client: httpx.AsyncClient) -> None:
    response = await client.delete("/v1/registry/entries/1")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "session_not_found")


async def test_drain_reports_the_requests_in_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    response = await client.post("/admin/drain")
    assert response.status_code == 202
    assert response.json() == {"draining": True, "running": 0, "queued": 0}
    assert engine.is_draining


async def test_draining_engine_refuses_new_requests(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    await client.post("/admin/drain")
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")


async def test_draining_engine_accepts_requests_within_the_grace_and_is_not_ready(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    await client.post("/admin/drain", params={"grace_s": 5})
    assert (await client.get("/readyz")).status_code == 503
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200


async def test_draining_engine_closes_connections(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    before = await client.post("/v1/chat/completions", json=body)
    await client.post("/admin/drain", params={"grace_s": 5})
    after = await client.post("/v1/chat/completions", json=body)
    assert "connection" not in before.headers
    assert after.headers["connection"] == "close"


@pytest.mark.parametrize("grace_s", ["-1", "601", "nan", "soon"])
async def test_invalid_grace_does_not_drain(
    client: httpx.AsyncClient, engine: FakeEngine, grace_s: str
) -> None:
    response = await client.post("/admin/drain", params={"grace_s": grace_s})
    assert response.status_code in (400, 422)
    assert "grace_s" in response.json()["error"]["message"]
    assert not engine.is_draining


async def test_profile_that_fits_is_not_short(client: httpx.AsyncClient) -> None:
    profile = {"lanes": 1, "entries": 2, "current_state": "keep"}
    response = await client.post("/admin/fit", json=profile)
    assert response.json() == {
        "fits": True,
        "required_bytes": 6,
        "available_bytes": 100,
        "short_by_bytes": 0,
    }


async def test_profile_that_does_not_fit_reports_the_missing_bytes(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.available_bytes = 4
    response = await client.post("/admin/fit", json={"lanes": 2, "entries": 3})
    report = response.json()
    assert (response.status_code, report["fits"], report["short_by_bytes"]) == (200, False, 6)


async def test_dropping_the_current_state_needs_fewer_bytes(client: httpx.AsyncClient) -> None:
    profile = {"lanes": 1, "entries": 2, "current_state": "drop"}
    response = await client.post("/admin/fit", json=profile)
    assert response.json()["required_bytes"] == 4


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"lanes": 0}, 400),
        ({"lanes": 65}, 400),
        ({"entries": -1}, 400),
        ({"current_state": "lose"}, 400),
        ({"entries": 0, "current_state": "drop"}, 400),
        ({"lanes": "1"}, 422),
        ({"entries": None}, 422),
    ],
    ids=str,
)
async def test_impossible_profile_is_refused(
    client: httpx.AsyncClient, fields: dict[str, Any], status: int
) -> None:
    response = await client.post("/admin/fit", json={"lanes": 1, "entries": 1} | fields)
    assert response.status_code == status


async def test_document_describes_the_bodies_that_routes_read(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    operation = document["paths"]["/v1/chat/completions"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert schema["properties"]["temperature"]["anyOf"][0]["maximum"] == 2
    assert set(schema["required"]) == {"model", "messages"}


async def test_document_has_every_schema_that_it_refers_to(
    client: httpx.AsyncClient,
) -> None:
    document = (await client.get("/openapi.json")).json()

    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(child) for child in node.values()))
        if isinstance(node, list):
            return set[str]().union(*(references(child) for child in node))
        return set()

    held = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= held


async def test_document_has_the_error_body_of_every_route(
    client: httpx.AsyncClient,
) -> None:
    document = (await client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        name = "MessagesErrorBody" if path.startswith("/v1/messages") else "ErrorBody"
        for operation in operations.values():
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{name}"}
