"""Sampling over HTTP: seeds are reproducible in any batch, and no setting affects another request.

The model has random weights and computes in fp64, so that rounding in a batch does not change a
token. No answer ends before its token limit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import torch
from tests.engine.engine_bench import EngineBench

from kvreg_service.api.app import create_app
from kvreg_service.engine.build import LoadedModel
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.testing import random_weights, tiny_config
from kvreg_service.settings import Settings

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"
GREEDY = {"temperature": 0}
DRAWN = {"temperature": 1.5, "seed": 7}
# Every sampling setting, each strong enough to change the answer.
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.5, "seed": 1},
    "top_k": {"temperature": 1.5, "seed": 1, "top_k": 3},
    "top_p": {"temperature": 1.5, "seed": 1, "top_p": 0.3},
    "min_p": {"temperature": 1.5, "seed": 1, "min_p": 0.5},
    "presence_penalty": {"temperature": 0, "presence_penalty": 2},
    "frequency_penalty": {"temperature": 0, "frequency_penalty": 2},
    "repetition_penalty": {"temperature": 0, "repetition_penalty": 10},
    "logit_bias": {"temperature": 0, "logit_bias": {"65": 100}},
    "stop": {"temperature": 0, "stop": ["e"]},
    "logprobs": {"temperature": 0, "logprobs": True, "top_logprobs": 5},
}


@pytest.fixture(scope="module")
def random_model(loaded_model: LoadedModel) -> LoadedModel:
    config = tiny_config(layer_types=("linear_attention", "full_attention"), vocab_size=2048)
    weights = random_weights(config, dtype=torch.float64)
    model = HybridModel(config, weights, torch.device("cpu"))
    return LoadedModel(config, model, loaded_model.tokenizer, loaded_model.template, "random")


@pytest.fixture
def bench(random_model: LoadedModel) -> Iterator[EngineBench]:
    bench = EngineBench(random_model, lanes=2, entries=1)
    yield bench
    bench.engine.close()


@pytest.fixture
async def client(bench: EngineBench, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(bench.engine, bench.prompts, settings, vocab_size=2048)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


async def ask(client: httpx.AsyncClient, text: str, **options: Any) -> dict[str, Any]:
    """The choice of an answer of at most 24 tokens."""
    body = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 24,
        **options,
    }
    response = await client.post(URL, json=body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return dict(choice)


async def say(client: httpx.AsyncClient, text: str, **options: Any) -> str:
    return str((await ask(client, text, **options))["message"]["content"])


async def test_a_seed_is_reproducible(client: httpx.AsyncClient) -> None:
    first, second = [await say(client, "Hello", **DRAWN) for _ in range(2)]
    assert first == second


async def test_another_seed_gives_another_answer(client: httpx.AsyncClient) -> None:
    assert await say(client, "Hello", **DRAWN) != await say(client, "Hello", **DRAWN | {"seed": 8})


async def test_a_seed_is_reproducible_in_a_batch(
    client: httpx.AsyncClient, bench: EngineBench
) -> None:
    alone = await say(client, "Hello", **DRAWN)
    mate = {"temperature": 1.9, "seed": 3}
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(say(client, "Hello", **DRAWN))
        tasks.create_task(say(client, "Another prompt", **mate))
        tasks.create_task(say(client, "A third", **GREEDY))
    assert 2 in bench.runner.batch_sizes
    assert beside.result() == alone


async def test_case_49_no_setting_leaks_into_the_next_request(client: httpx.AsyncClient) -> None:
    greedy = await ask(client, "Hello", **GREEDY)
    drawn = await ask(client, "Hello", **DRAWN)
    for settings in SETTINGS.values():
        await say(client, "Hello", **settings)
        assert await ask(client, "Hello", **GREEDY) == greedy
        assert await ask(client, "Hello", **DRAWN) == drawn


async def test_case_49_no_setting_leaks_into_a_concurrent_request(
    client: httpx.AsyncClient,
) -> None:
    greedy = await ask(client, "Hello", **GREEDY)
    for settings in SETTINGS.values():
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(ask(client, "Hello", **GREEDY))
            tasks.create_task(ask(client, "Another prompt", **settings))
        assert beside.result() == greedy


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "logprobs"])
async def test_every_setting_changes_the_answer(client: httpx.AsyncClient, name: str) -> None:
    plain = {key: SETTINGS[name][key] for key in ("temperature", "seed") if key in SETTINGS[name]}
    if name == "temperature":
        plain = GREEDY
    assert await say(client, "Hello", **SETTINGS[name]) != await say(client, "Hello", **plain)


@pytest.mark.parametrize("options", [GREEDY, DRAWN], ids=str)
async def test_logprobs_change_nothing_of_the_answer(
    client: httpx.AsyncClient, options: dict[str, Any]
) -> None:
    plain = await say(client, "Hello", **options)
    assert await say(client, "Hello", **options, logprobs=True, top_logprobs=3) == plain


async def test_greedy_chooses_the_most_likely_token(client: httpx.AsyncClient) -> None:
    choice = await ask(client, "Hello", **GREEDY, logprobs=True, top_logprobs=3)
    entries = choice["logprobs"]["content"]
    assert len(entries) == 24
    for entry in entries:
        best, *others = entry["top_logprobs"]
        assert (entry["bytes"], entry["logprob"]) == (best["bytes"], best["logprob"])
        assert all(other["logprob"] <= best["logprob"] for other in others)


async def test_logprobs_are_those_of_the_model_whatever_the_settings(
    client: httpx.AsyncClient,
) -> None:
    first = [
        (await ask(client, "Hello", **options, logprobs=True, top_logprobs=5, max_tokens=1))[
            "logprobs"
        ]["content"][0]["top_logprobs"]
        for options in (GREEDY, SETTINGS["top_k"], SETTINGS["logit_bias"])
    ]
    assert first[0] == first[1] == first[2]
    assert sum(math.exp(entry["logprob"]) for entry in first[0]) < 1


async def test_bytes_of_the_tokens_are_the_answer(client: httpx.AsyncClient) -> None:
    choice = await ask(client, "Hello", **GREEDY, logprobs=True)
    entries = choice["logprobs"]["content"]
    spelled = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert spelled.decode(errors="replace") == choice["message"]["content"]


async def test_each_request_of_a_batch_gets_its_own_logprobs(client: httpx.AsyncClient) -> None:
    options = {**GREEDY, "logprobs": True, "top_logprobs": 2}
    alone = [await ask(client, text, **options) for text in ("Hello", "Another prompt")]
    together = await asyncio.gather(
        *(ask(client, text, **options) for text in ("Hello", "Another prompt"))
    )
    for one, other in zip(alone, together, strict=True):
        ours, theirs = (choice["logprobs"]["content"] for choice in (one, other))
        assert [entry["bytes"] for entry in ours] == [entry["bytes"] for entry in theirs]
        logprobs = [entry["logprob"] for entry in theirs]
        assert [entry["logprob"] for entry in ours] == pytest.approx(logprobs, abs=1e-9)
