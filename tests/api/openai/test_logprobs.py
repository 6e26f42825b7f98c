"""Log probabilities of an answer, whole and streamed, and only if requested."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import openai
import pytest

from kvreg_service.engine.interface.generation import SpelledToken, TextDelta, TokenReport
from kvreg_service.testing.fake_engine import FakeEngine, Script

URL = "/v1/chat/completions"


def delta(text: str, *spellings: bytes, logprob: float = -0.5) -> TextDelta:
    """A delta with one token for each spelling, each reported with one candidate."""
    reports = [
        TokenReport(SpelledToken(spelling, logprob), (SpelledToken(b"x", -0.25),))
        for spelling in spellings
    ]
    return TextDelta(text, len(spellings), tuple(reports))


def script() -> Script:
    euro = "€".encode()
    return Script(
        steps=[
            delta("Hel", b"Hel"),
            # Part of a character, and a possible stop string, have no text yet.
            delta("", euro[:1]),
            delta("€lo", euro[1:], b"lo"),
            delta("", b"\n"),
        ]
    )


SPELLINGS = [b"Hel", "€".encode()[:1], "€".encode()[1:], b"lo", b"\n"]


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"logprobs": True, "top_logprobs": 1}


async def read_choices(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(URL, json=body | {"stream": True})
    *events, done, _ = response.text.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
    ids=str,
)
async def test_engine_reports_as_many_candidates_as_requested(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    fields: dict[str, Any],
    expected: int | None,
) -> None:
    del body["logprobs"], body["top_logprobs"]
    await client.post(URL, json=body | fields)
    assert engine.requests[0].sampling.num_logprobs == expected


@pytest.mark.anyio
async def test_whole_answer_has_an_entry_for_each_token(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [script()]
    (choice,) = (await client.post(URL, json=body)).json()["choices"]
    assert [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]] == SPELLINGS
    assert choice["logprobs"]["content"][0] == {
        "token": "Hel",
        "logprob": -0.5,
        "bytes": [72, 101, 108],
        "top_logprobs": [{"token": "x", "logprob": -0.25, "bytes": [120]}],
    }


@pytest.mark.anyio
async def test_stream_has_each_token_once_and_in_order(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [script()]
    choices = await read_choices(client, body)
    entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    assert [bytes(entry["bytes"]) for entry in entries] == SPELLINGS


@pytest.mark.anyio
async def test_tokens_are_in_the_chunk_of_their_text(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [script()]
    choices = await read_choices(client, body)
    seen = [
        (c["delta"].get("content"), len(c["logprobs"]["content"]) if c["logprobs"] else None)
        for c in choices
    ]
    assert seen == [("", None), ("Hel", 1), ("€lo", 3), (None, 1)]


@pytest.mark.anyio
async def test_part_of_a_character_is_exact_in_bytes(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [script()]
    (choice,) = (await client.post(URL, json=body)).json()["choices"]
    entry = choice["logprobs"]["content"][1]
    assert (entry["token"], entry["bytes"]) == ("\ufffd", [226])


@pytest.mark.anyio
@pytest.mark.parametrize("logprob", [-math.inf, math.nan])
async def test_infinite_logprob_becomes_minus_9999(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], logprob: float
) -> None:
    engine.scripts = [Script(steps=[delta("a", b"a", logprob=logprob)])]
    (choice,) = (await client.post(URL, json=body)).json()["choices"]
    assert choice["logprobs"]["content"][0]["logprob"] == -9999.0


@pytest.mark.anyio
async def test_reasoning_has_no_entries(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    steps = [delta("Hm", b"Hm"), delta("\n</think>", b"\n", b"</think>"), delta("\n\nSo", b"So")]
    engine.scripts = [Script(steps=steps), Script(steps=steps)]
    fields = {"enable_thinking": True}
    (choice,) = (await client.post(URL, json=body | fields)).json()["choices"]
    assert [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]] == [b"So"]
    choices = await read_choices(client, body | fields)
    assert [c["delta"] for c in choices if c["logprobs"]] == [{"content": "So"}]


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_null_unless_requested(
    client: httpx.AsyncClient, body: dict[str, Any], stream: bool
) -> None:
    fields = {"logprobs": None, "top_logprobs": None}
    if stream:
        choices = await read_choices(client, body | fields)
    else:
        choices = (await client.post(URL, json=body | fields)).json()["choices"]
    assert {choice["logprobs"] for choice in choices} == {None}


def test_official_client_reads_them(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.scripts = [script(), script()]
    more: Any = {"logprobs": True, "top_logprobs": 1}
    user: Any = {"role": "user", "content": "Hi"}
    whole = openai_client.chat.completions.create(model="fake-model", messages=[user], **more)
    with openai_client.chat.completions.stream(
        model="fake-model", messages=[user], **more
    ) as stream:
        streamed = stream.get_final_completion()
    assert whole.choices[0].logprobs is not None
    assert streamed.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content == streamed.choices[0].logprobs.content
