"""Marks of shared prefixes reach the prompt builder as message indices, and nothing else does."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest

from kvreg_service.testing.fake_engine import FakeEngine
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
MODEL = "fake-model"
MARK = {"cache_control": {"type": "ephemeral"}}
TOOL: Any = {"name": "look", "input_schema": {"type": "object"}}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": content, **more}


CALL = {"type": "tool_use", "id": "t", "name": "look", "input": {}}

PLACES: list[tuple[dict[str, Any], set[int], bool]] = [
    ({"messages": [user(text("a"))]}, set(), False),
    ({"messages": [user(text("a", cache_control=None))]}, set(), False),
    ({"system": [text("s", **MARK)], "messages": [user(text("a"))]}, {0}, False),
    ({"system": [text("s", **MARK), text("t")], "messages": [user(text("a"))]}, {0}, False),
    # An empty system prompt is left out.
    ({"system": [text("", **MARK)], "messages": [user(text("a"))]}, set(), False),
    ({"system": "s", "messages": [user(text("a", **MARK))]}, {1}, False),
    ({"messages": [user(text("a", **MARK), text("b"))]}, set(), False),
    ({"messages": [user(text("a"), text("b", **MARK))]}, {0}, False),
    (
        {"messages": [user(text("a")), {"role": "assistant", "content": [text("b", **MARK)]}]},
        {1},
        False,
    ),
    (
        {"messages": [{"role": "system", "content": [text("s", **MARK)]}, user(text("a"))]},
        {0},
        False,
    ),
    (
        {
            "messages": [
                user(text("a")),
                {"role": "assistant", "content": [CALL | MARK]},
                user(result("r"), result("s", **MARK), text("b")),
            ]
        },
        {1, 3},
        False,
    ),
    # Each tool result becomes a message, so the text after them is the third.
    ({"messages": [user(result("r"), result("s"), text("b", **MARK))]}, {2}, False),
    ({"messages": [user(result([text("r", **MARK)]), text("b"))]}, {0}, False),
    ({"tools": [TOOL | MARK], "messages": [user(text("a"))]}, set(), True),
    ({"tools": [TOOL | MARK, TOOL], "messages": [user(text("a", **MARK))]}, {0}, True),
]


@pytest.mark.parametrize(("fields", "marked", "marks_tools"), PLACES, ids=str)
async def test_cache_control_marks_the_message_of_its_block(
    client: httpx.AsyncClient,
    prompt_builder: FakePromptBuilder,
    fields: dict[str, Any],
    marked: set[int],
    marks_tools: bool,
) -> None:
    body = {"model": MODEL, "max_tokens": 5, **fields}
    assert (await client.post("/v1/messages", json=body)).status_code == 200
    (conversation,) = prompt_builder.conversations
    assert (conversation.marked_messages, conversation.marks_tools) == (marked, marks_tools)


@pytest.mark.parametrize(
    ("blocks", "marked_texts"),
    [
        ([text("four", **MARK)], set()),
        ([text("four", **MARK), text("more")], {(0, 4)}),
        ([text("four", **MARK), text("more", **MARK), text("!")], {(0, 4), (0, 8)}),
        ([result("r"), text("four", **MARK), text("more")], {(1, 4)}),
    ],
    ids=str,
)
async def test_mark_before_more_text_becomes_an_offset_within_the_message(
    client: httpx.AsyncClient,
    prompt_builder: FakePromptBuilder,
    blocks: list[Any],
    marked_texts: set[tuple[int, int]],
) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": [user(*blocks)]}
    assert (await client.post("/v1/messages", json=body)).status_code == 200
    (conversation,) = prompt_builder.conversations
    assert conversation.marked_texts == marked_texts


@pytest.mark.parametrize("fields", [fields for fields, _, _ in PLACES], ids=str)
async def test_cache_control_is_not_rendered(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, fields: dict[str, Any]
) -> None:
    def without_marks(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: without_marks(v) for k, v in node.items() if k != "cache_control"}
        return [without_marks(item) for item in node] if isinstance(node, list) else node

    for sent in (fields, without_marks(fields)):
        await client.post("/v1/messages", json={"model": MODEL, "max_tokens": 5, **sent})
    marked, plain = prompt_builder.conversations
    assert (marked.messages, marked.tools) == (plain.messages, plain.tools)


@pytest.mark.parametrize(
    ("mark", "status", "param"),
    [
        ({"type": "ephemeral"}, 200, None),
        ({"type": "ephemeral", "ttl": "5m"}, 200, None),
        ({"type": "ephemeral", "ttl": "1h"}, 200, None),
        ({"type": "persistent"}, 400, "cache_control.type"),
        ({"type": "ephemeral", "ttl": "2h"}, 400, "cache_control.ttl"),
        ({}, 422, "cache_control.type"),
        ("ephemeral", 422, "cache_control"),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["system", "messages", "tools", "result"])
async def test_mark_of_another_type_is_refused(
    client: httpx.AsyncClient, mark: Any, status: int, param: str | None, place: str
) -> None:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "messages": [user(text("a"))]}
    block = {"cache_control": mark}
    match place:
        case "system":
            body["system"] = [text("s", **block)]
        case "messages":
            body["messages"] = [user(text("a", **block))]
        case "tools":
            body["tools"] = [TOOL | block]
        case "result":
            body["messages"] = [user(result([text("a", **block)]))]
    response = await client.post("/v1/messages", json=body)
    assert response.status_code == status
    if param is not None:
        assert response.json()["error"]["details"]["param"].endswith(param)


@pytest.mark.parametrize(("num_marks", "status"), [(4, 200), (5, 400)])
async def test_more_than_four_blocks_cannot_be_marked(
    client: httpx.AsyncClient, num_marks: int, status: int
) -> None:
    blocks = [text("a", **MARK)] * (num_marks - 3)
    body = {
        "model": MODEL,
        "max_tokens": 5,
        "system": [text("s", **MARK)],
        "tools": [TOOL | MARK],
        "messages": [user(result([text("r", **MARK)]), *blocks)],
    }
    for url in ("/v1/messages", "/v1/messages/count_tokens"):
        response = await client.post(url, json=body)
        assert response.status_code == status
        if status == 400:
            message = response.json()["error"]["message"]
            assert "5 places" in message
            assert "at most 4" in message


async def test_cache_anchor_marks_its_message_and_is_not_rendered(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder
) -> None:
    messages = [
        {"role": "system", "content": "s", "cache_anchor": True},
        {"role": "user", "content": "a", "cache_anchor": False},
        {"role": "assistant", "content": "b", "cache_anchor": None},
        {"role": "user", "content": "c", "cache_anchor": True},
    ]
    body = {"model": MODEL, "messages": messages}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    (conversation,) = prompt_builder.conversations
    assert conversation.marked_messages == {0, 3}
    assert not conversation.marks_tools
    assert all("cache_anchor" not in message for message in conversation.messages)


@pytest.mark.parametrize(("num_marks", "status"), [(4, 200), (5, 400)])
async def test_more_than_four_messages_cannot_be_marked(
    client: httpx.AsyncClient, num_marks: int, status: int
) -> None:
    messages = [{"role": "user", "content": "a", "cache_anchor": True}] * num_marks
    body = {"model": MODEL, "messages": messages}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == status


async def test_cache_anchor_that_is_no_flag_is_malformed(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "a", "cache_anchor": 1}]
    body = {"model": MODEL, "messages": messages}
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (
        422,
        "messages.0.cache_anchor",
    )


def test_marks_of_the_anthropic_client_reach_the_prompt(
    anthropic_client: anthropic.Anthropic, prompt_builder: FakePromptBuilder, engine: FakeEngine
) -> None:
    arguments: dict[str, Any] = {
        "system": [text("s", cache_control={"type": "ephemeral", "ttl": "1h"})],
        "tools": [TOOL | MARK],
        "messages": [{"role": "user", "content": [text("a", **MARK)]}],
        "extra_body": {"cache_prompt": False},
    }
    anthropic_client.messages.create(model=MODEL, max_tokens=5, **arguments)
    (conversation,) = prompt_builder.conversations
    assert (conversation.marked_messages, conversation.marks_tools) == ({0, 1}, True)
    assert engine.requests[0].cache_policy.may_reuse is False


def test_mark_of_the_openai_client_reaches_the_prompt(
    openai_client: openai.OpenAI, prompt_builder: FakePromptBuilder
) -> None:
    messages: Any = [
        {"role": "system", "content": "s", "cache_anchor": True},
        {"role": "user", "content": "a"},
    ]
    openai_client.chat.completions.create(model=MODEL, messages=messages)
    assert prompt_builder.conversations[0].marked_messages == {0}
