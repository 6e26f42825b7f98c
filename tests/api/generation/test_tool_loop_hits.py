"""Tool loops on a real engine: an echoed tool call hits, in any serialisation."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.api.taught_engine import Taught

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
BY_TEMPLATE = (
    "Let me look.\n\n<tool_call>\n<function=look>\n<parameter=at>\nthe sky\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
SPELLINGS = {
    "as the template": BY_TEMPLATE,
    "in other white space": BY_TEMPLATE.replace("\n\n", "\n").replace("\n</f", "</f"),
    "in other numbers": BY_TEMPLATE.replace("\n3\n", "\n3.0\n"),
    "as json": '<tool_call>{"arguments":{"days":3,"at":"the sky"},"name":"look"}</tool_call>\n',
}
SIDE = {"messages": [{"role": "user", "content": "Write a title for this."}], "max_tokens": 8}


def body_of(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": messages, "tools": TOOLS, "temperature": 0, **more}


def reserialised(message: dict[str, Any]) -> dict[str, Any]:
    """The message as another client library serialises it: other ids, order and spacing."""
    calls = []
    for i, call in enumerate(message["tool_calls"]):
        arguments = json.loads(call["function"]["arguments"])
        text = json.dumps(dict(sorted(arguments.items(), reverse=True)), separators=(",", ":"))
        calls.append({"id": f"mine_{i}", "type": "function", "function": {
            "name": call["function"]["name"], "arguments": text,
        }})  # fmt: skip
    return {**message, "tool_calls": calls}


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(URL, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def opening(nonce: str) -> list[dict[str, Any]]:
    notes = "The notes are updated once a week. " * 20
    system = {"role": "system", "content": f"Ticket {nonce}. {notes}"}
    return [system, {"role": "user", "content": "What is it like outside?"}]


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
async def test_next_round_appends_to_a_generated_call(
    taught: Taught, taught_client: httpx.AsyncClient, spelling: str
) -> None:
    taught.teacher.answers = [spelling]
    messages = opening("1")
    first = await ask(taught_client, body_of(messages))
    echo = reserialised(first["choices"][0]["message"])
    result = {"role": "tool", "tool_call_id": "mine_0", "content": "Blue."}
    second = await ask(taught_client, body_of([*messages, echo, result], max_tokens=4))
    assert second["usage"]["kvreg"]["reuse_path"] == "append_frontier"
    answered = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    # The end token is not computed before the next round.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == answered - 1


async def test_a_loop_with_side_requests_hits_at_every_step_with_well_formed_calls(
    taught: Taught, taught_client: httpx.AsyncClient
) -> None:
    messages = opening("2")
    before = 0
    for spelling in [*SPELLINGS.values(), *SPELLINGS.values()]:
        taught.teacher.answers = [spelling]
        answer = await ask(taught_client, body_of(messages))
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"at": "the sky", "days": 3}
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= before - 64
        before = answer["usage"]["prompt_tokens"]
        result = {"role": "tool", "tool_call_id": "mine_0", "content": "Blue."}
        messages += [reserialised(choice["message"]), result]
        await ask(taught_client, {"model": "fake-model", **SIDE})


async def test_a_call_cut_by_max_tokens_is_text_and_hits(
    taught: Taught, taught_client: httpx.AsyncClient
) -> None:
    taught.teacher.answers = [BY_TEMPLATE]
    messages = opening("3")
    first = await ask(taught_client, body_of(messages, max_tokens=20))
    (choice,) = first["choices"]
    assert choice["finish_reason"] == "length"
    assert BY_TEMPLATE.startswith(choice["message"]["content"])
    following = [*messages, choice["message"], {"role": "user", "content": "Go on."}]
    second = await ask(taught_client, body_of(following, max_tokens=4))
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 64


async def test_a_call_with_reasoning_hits_when_the_reasoning_comes_back(
    taught: Taught, taught_client: httpx.AsyncClient
) -> None:
    taught.teacher.answers = [f"I have to look.\n</think>\n\n{SPELLINGS['as json']}"]
    messages = opening("4")
    first = await ask(taught_client, body_of(messages, enable_thinking=True))
    (choice,) = first["choices"]
    assert choice["message"]["reasoning_content"] == "I have to look."
    result = {"role": "tool", "tool_call_id": "mine_0", "content": "Blue."}
    following = [*messages, reserialised(choice["message"]), result]
    second = await ask(taught_client, body_of(following, enable_thinking=True, max_tokens=4))
    assert second["usage"]["kvreg"]["reuse_path"] == "append_frontier"


async def test_another_conversation_with_the_same_call_keeps_its_own_spelling(
    taught: Taught, taught_client: httpx.AsyncClient
) -> None:
    spellings = {"5": SPELLINGS["as json"], "6": BY_TEMPLATE}
    echoes = {}
    for nonce, spelling in spellings.items():
        taught.teacher.answers = [spelling]
        first = await ask(taught_client, body_of(opening(nonce)))
        echoes[nonce] = reserialised(first["choices"][0]["message"])
    result = {"role": "tool", "tool_call_id": "mine_0", "content": "Blue."}
    for nonce, echo in echoes.items():
        answer = await ask(taught_client, body_of([*opening(nonce), echo, result], max_tokens=4))
        assert answer["usage"]["kvreg"]["reuse_path"] == "append_frontier"
