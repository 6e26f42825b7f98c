"""``/metrics``: needs no key, agrees with the registry, and counts every request once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvreg_service.api.app import create_app
from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.core import errors
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.engine import Engine
from kvreg_service.engine.interface.generation import GenerationRequest
from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.settings import Settings, load_settings
from kvreg_service.telemetry.metrics.metrics import Metrics
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
MODEL = "fake-model"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Values = dict[tuple[str, ...], float]


async def scrape(client: httpx.AsyncClient) -> Values:
    """Every series: its name without the prefix, and its label values in the order of the names."""
    text = (await client.get("/metrics")).raise_for_status().text
    samples = [sample for family in parse_text(text) for sample in family.samples]
    return {
        (one.name.removeprefix("kvreg_"), *(value for _, value in sorted(one.labels.items()))): (
            one.value
        )
        for one in samples
    }


def of(values: Values, name: str) -> dict[str, float]:
    """The values of a metric with one label, without zeros."""
    return {key[1]: value for key, value in values.items() if key[0] == name and value}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


@pytest.fixture
def app(
    engine: FakeEngine, prompt_builder: FakePromptBuilder, settings: Settings, metrics: Metrics
) -> FastAPI:
    metrics.watch(engine)
    return create_app(engine, prompt_builder, settings, vocab_size=256, metrics=metrics)


@contextlib.asynccontextmanager
async def connected(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        (None, "text/plain; version=0.0.4; charset=utf-8", parse_text),
        ("text/html", "text/plain; version=0.0.4; charset=utf-8", parse_text),
        (f"{OPENMETRICS}; q=0.5, text/plain; q=0.3", OPENMETRICS, parse_openmetrics),
        ("application/openmetrics-text; version=?", "text/plain; version=0.0.4", parse_text),
        ("application/openmetrics-text; version=1.0.0.0.0", OPENMETRICS, parse_openmetrics),
        ("text/plain; version=", "text/plain; version=0.0.4", parse_text),
    ],
)
async def test_format_follows_the_accept_header(
    client: httpx.AsyncClient,
    accept: str | None,
    content_type: str,
    parse: Callable[[str], Iterator[Any]],
) -> None:
    response = await client.get("/metrics", headers={"accept": accept} if accept else {})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(content_type)
    names = {family.name.removesuffix("_total") for family in parse(response.text)}
    assert {"kvreg_requests", "kvreg_lanes", "process_resident_memory_bytes"} <= names


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
async def test_page_has_no_created_series(client: httpx.AsyncClient, accept: str) -> None:
    text = (await client.get("/metrics", headers={"accept": accept})).text
    assert "_created" not in text


async def test_page_needs_no_key_and_names_no_tenant(
    engine: FakeEngine, prompt_builder: FakePromptBuilder, metrics: Metrics
) -> None:
    keys = {"tenants": {"tenant-alpha": {"keys": ["a1"]}, "tenant-beta": {"keys": ["b1"]}}}
    engine.kept_tenant = "tenant-alpha"
    metrics.watch(engine)
    settings = load_settings({"served_model_name": MODEL, "api_keys": json.dumps(keys)})
    async with connected(create_app(engine, prompt_builder, settings, metrics=metrics)) as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert 'kvreg_kept_sessions{place="registry"} 1.0' in response.text
    assert "tenant" not in response.text


async def test_without_metrics_the_route_does_not_exist(
    engine: FakeEngine, prompt_builder: FakePromptBuilder, settings: Settings
) -> None:
    async with connected(create_app(engine, prompt_builder, settings)) as client:
        assert (await client.get("/metrics")).status_code == 404
        assert (await client.post(CHAT, json={})).status_code == 422


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"messages": "none"}, "unprocessable_body"),
        ({"model": "another"}, "model_not_found"),
        ({"messages": [{"role": "user", "content": "x" * 70_000}]}, "body_too_large"),
        ({"temperature": -1}, "invalid_request"),
    ],
)
async def test_invalid_request_is_a_refusal(
    client: httpx.AsyncClient, body: dict[str, Any], path: str, change: dict[str, Any], code: str
) -> None:
    response = await client.post(path, json=body | {"max_tokens": 5} | change)
    assert 400 <= response.status_code < 500
    assert of(await scrape(client), "refused_requests_total") == {code: 1}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("state", "code"),
    [({"is_full": True}, "server_overloaded"), ({"is_draining": True}, "draining")],
)
async def test_request_that_the_engine_rejects_is_a_refusal(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    state: dict[str, bool],
    code: str,
    stream: bool,
) -> None:
    for name, value in state.items():
        setattr(engine, name, value)
    await client.post(CHAT, json=body | {"stream": stream})
    assert of(await scrape(client), "refused_requests_total") == {code: 1}


@pytest.mark.parametrize(
    ("error", "refusals"),
    [
        (errors.ContextTooLong(9, 8), {"context_length_exceeded": 1}),
        (errors.EngineDown("gone"), {"engine_down": 1}),
        (RuntimeError("a bug"), {"internal_error": 1}),
        (errors.QueueTimeout("late"), {}),
        (errors.RequestFailed("broken"), {}),
        (errors.OutOfPages("none left"), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_failure_of_an_accepted_request_is_no_refusal(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    error: Exception,
    refusals: dict[str, float],
) -> None:
    engine.scripts.append(Script(before=[error]))
    assert (await client.post(CHAT, json=body)).status_code >= 400
    assert of(await scrape(client), "refused_requests_total") == refusals


async def test_unauthorized_request_is_a_refusal(
    engine: FakeEngine, prompt_builder: FakePromptBuilder, metrics: Metrics, body: dict[str, Any]
) -> None:
    keys = json.dumps({"tenants": {"alpha": {"keys": ["a1"]}}})
    settings = load_settings({"served_model_name": MODEL, "api_keys": keys})
    async with connected(create_app(engine, prompt_builder, settings, metrics=metrics)) as client:
        assert (await client.post(CHAT, json=body)).status_code == 401
        assert (await client.get("/v1/registry")).status_code == 401
        assert (await client.get(CHAT)).status_code == 401
        assert of(await scrape(client), "refused_requests_total") == {"invalid_api_key": 1}


async def test_request_that_generates_nothing_is_no_refusal(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.is_draining = True
    answers = [
        await client.get("/readyz"),
        await client.get(CHAT),
        await client.get("/nowhere"),
        await client.post(f"{MESSAGES}/count_tokens", json={}),
        await client.delete("/v1/registry/sessions/99"),
    ]
    assert all(answer.status_code >= 400 for answer in answers)
    assert of(await scrape(client), "refused_requests_total") == {}


@pytest.fixture
def real(
    loaded_model: LoadedModel, metrics: Metrics
) -> Iterator[tuple[Engine, PromptBuilder, FastAPI]]:
    # Longer than a busy machine needs to start a request on a free lane, and shorter than the
    # endless answer runs.
    options = EngineOptions(
        REFERENCE_MODEL_PATH, MODEL, max_context_tokens=1024, num_pages=64, queue_timeout_s=0.5
    )
    engine, builder = build_engine(options, loaded_model, observers=(metrics,))
    try:
        metrics.watch(engine)
        settings = load_settings({"served_model_name": MODEL})
        yield engine, builder, create_app(engine, builder, settings, metrics=metrics)
    finally:
        engine.close()


def endless(loaded: LoadedModel, builder: PromptBuilder) -> GenerationRequest:
    """A request whose answer ends only at its token limit."""
    never = dict.fromkeys(loaded.tokenizer.eos_token_ids, -100.0)
    messages = [{"role": "user", "content": "Go on."}]
    return GenerationRequest(
        "endless", build_prompt(builder, messages), None, SamplingParams(logit_bias=never)
    )


def build_prompt(builder: PromptBuilder, messages: list[dict[str, str]]) -> Any:
    return builder.build(Conversation(messages))


async def settled(client: httpx.AsyncClient) -> dict[str, Any]:
    while True:
        registry = (await client.get("/v1/registry")).json()
        if registry["running"] == registry["queued"] == 0:
            return dict(registry)
        # Without a pause the engine's thread might never get the GIL.
        await asyncio.sleep(0.002)


async def serve_a_mix(
    client: httpx.AsyncClient, engine: Engine, loaded: LoadedModel, builder: PromptBuilder
) -> None:
    """Serve requests with every attach, a detach, an eviction, and every outcome."""

    async def ask(messages: list[dict[str, str]]) -> dict[str, str]:
        body = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}
        answer = (await client.post(CHAT, json=body)).raise_for_status().json()
        return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}

    notes = "Notes. " + " ".join(f"Item {i} is at place {i * 7}." for i in range(40))
    system = {"role": "system", "content": notes}
    first = [system, {"role": "user", "content": "Hello!"}]
    echo = await ask(first)
    await ask([{"role": "user", "content": "A side request."}])
    await ask([*first, echo])
    echo = await ask([*first, echo, {"role": "user", "content": "Thanks!"}])
    await ask([{"role": "user", "content": "Another side request."}])
    await ask([{"role": "user", "content": "And a third."}])
    await ask([system, {"role": "user", "content": "Who are you?"}])
    assert (await client.post(CHAT, json={})).status_code == 422
    stream = engine.generate(endless(loaded, builder))
    await anext(stream)
    late = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    assert (await client.post(CHAT, json=late)).status_code == 503
    await stream.aclose()


async def test_counters_agree_with_the_registry(
    real: tuple[Engine, PromptBuilder, FastAPI], loaded_model: LoadedModel
) -> None:
    engine, builder, app = real
    async with connected(app) as client:
        await serve_a_mix(client, engine, loaded_model, builder)
        registry = await settled(client)
        values = await scrape(client)
    totals = registry["totals"]
    requests = {key[1:]: value for key, value in values.items() if key[0] == "requests_total"}
    by_path: Counter[str] = Counter()
    by_outcome: Counter[str] = Counter()
    for (_attach, outcome, path, _tail), value in requests.items():
        by_path[path] += int(value)
        by_outcome[outcome] += int(value)
    assert by_path.pop("none") == totals["never_started"] == 1
    assert +by_path == +Counter(totals["requests_by_path"])
    for outcome in ("finished", "failed", "cancelled"):
        assert by_outcome[outcome] == totals[outcome] > 0
    tokens = of(values, "prompt_tokens_total")
    assert tokens.pop("computed") == totals["computed_tokens"]
    assert sum(tokens.values()) == totals["cached_tokens"] > 0
    assert values["completion_tokens_total",] == totals["completion_tokens"]
    assert of(values, "evictions_total") == totals["evictions_by_reason"] != {}
    assert of(values, "failed_requests_total") == {"request_queue_timeout": 1}
    assert of(values, "refused_requests_total") == {"unprocessable_body": 1}


async def test_gauges_agree_with_the_registry(
    real: tuple[Engine, PromptBuilder, FastAPI], loaded_model: LoadedModel
) -> None:
    engine, builder, app = real
    async with connected(app) as client:
        await serve_a_mix(client, engine, loaded_model, builder)
        registry = await settled(client)
        values = await scrape(client)
    assert of(values, "lanes") == Counter(lane["state"] for lane in registry["lanes"])
    assert values["lanes_limit",] == len(registry["lanes"])
    places = Counter(
        "shared" if one["is_shared"] else "registry" if one["lane"] is None else "lane"
        for one in registry["sessions"]
    )
    assert of(values, "kept_sessions") == places
    assert places["registry"] > 0
    states = [state for one in registry["sessions"] for state in one["states"]]
    assert of(values, "kept_states") == Counter(state["kind"] for state in states)
    assert values["registry_entries_limit",] == registry["profile"]["entries"]
    assert values["anchors_limit",] == registry["profile"]["anchors"]
    (pool,) = registry["pools"]
    for state in ("free", "referenced"):
        assert values["pages", pool["name"], state] == pool[state]
    assert values["pages_limit", pool["name"]] == pool["total"]
    slots = registry["state_slots"]
    assert of(values, "state_slots") == {
        name: slots[name] for name in ("free", "working", "kept") if slots[name]
    }
    assert slots["kept"] == len(states)
    assert sum(of(values, "state_slots").values()) == slots["total"]
    assert (values["running_requests",], values["queued_requests",]) == (0, 0)


async def test_attaches_agree_with_the_requests_that_were_attached(
    real: tuple[Engine, PromptBuilder, FastAPI], loaded_model: LoadedModel
) -> None:
    engine, builder, app = real
    async with connected(app) as client:
        await serve_a_mix(client, engine, loaded_model, builder)
        await settled(client)
        values = await scrape(client)
    attached: Counter[str] = Counter()
    by_request: Counter[str] = Counter()
    for key, value in values.items():
        if key[0] == "attaches_total":
            attached[key[1]] += int(value)
        if key[0] == "requests_total":
            by_request[key[1]] += int(value)
    del by_request["none"]
    assert attached == by_request
    assert set(attached) == {"registry", "anchor"}


async def test_states_kept_and_evicted_agree_with_those_that_are_left(
    real: tuple[Engine, PromptBuilder, FastAPI], loaded_model: LoadedModel
) -> None:
    engine, builder, app = real
    async with connected(app) as client:
        await serve_a_mix(client, engine, loaded_model, builder)
        await settled(client)
        values = await scrape(client)
    num_kept = sum(of(values, "states_kept_total").values())
    num_evicted = sum(of(values, "evictions_total").values())
    assert num_kept - num_evicted == sum(of(values, "kept_states").values()) > 0
    assert num_evicted > 0


async def test_every_resumed_state_is_copied_once(
    real: tuple[Engine, PromptBuilder, FastAPI], loaded_model: LoadedModel
) -> None:
    engine, builder, app = real
    async with connected(app) as client:
        await serve_a_mix(client, engine, loaded_model, builder)
        await settled(client)
        values = await scrape(client)
    num_resumed = sum(
        value
        for key, value in values.items()
        if key[0] == "requests_total" and key[3] not in ("none", "full_reset")
    )
    assert values["attach_seconds_count",] == num_resumed > 0


async def test_sessions_whose_lane_was_taken_are_detached(
    real: tuple[Engine, PromptBuilder, FastAPI], loaded_model: LoadedModel
) -> None:
    engine, builder, app = real
    async with connected(app) as client:
        await serve_a_mix(client, engine, loaded_model, builder)
        await settled(client)
        values = await scrape(client)
    # Every request but the first and the one that goes on where the lane is begins or resumes
    # another session than the last one of the only lane.
    assert of(values, "detaches_total") == {"kept": 6}
