"""Responses of the Messages API: body, usage, and the input of the prompt builder."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.core.labels import Attach, FinishReason, ReusePath
from kvreg_service.core.requests.request import CachePolicy
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
URL = "/v1/messages"
CALL = "<tool_call>\n<function=look>\n<parameter=at>\nsky\n</parameter>\n</function>\n</tool_call>"
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {}}}}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def body(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": 100}


async def test_answer_is_one_block_of_text(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = (await client.post(URL, json=body)).json()
    assert answer.pop("id").startswith("msg_")
    assert {"usage", "timings"} <= answer.keys()
    del answer["usage"], answer["timings"]
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": "Hello, you."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }


async def test_input_tokens_exclude_cached_tokens(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [
        Script(
            cached_tokens=4, reuse_path=ReusePath.RESTORE_TURN_CHECKPOINT, attach=Attach.REGISTRY
        )
    ]
    usage = (await client.post(URL, json=body)).json()["usage"]
    assert usage == {
        "input_tokens": len(b"user: Hi\n") - 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 0},
        "kvreg": {
            "reuse_path": "restore_turn_checkpoint",
            "attach": "registry",
            "computed_tokens": len(b"user: Hi\n") - 4,
        },
    }


async def test_timings_are_those_of_the_engine(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    timings = (await client.post(URL, json=body)).json()["timings"]
    assert (timings["ttft_s"], timings["decode_s"]) == (0.875, 2.0)


async def test_empty_answer_has_no_blocks(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[""])]
    assert (await client.post(URL, json=body)).json()["content"] == []


async def test_reasoning_text_and_calls_are_blocks_in_their_order(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    steps = ["I ", "think", "\n</think>\n\n", "Let me", " look.\n\n", CALL, "\n\nAnd."]
    engine.scripts = [Script(steps=steps)]
    fields = {"thinking": {"type": "enabled", "budget_tokens": 2048}, "tools": [TOOL]}
    answer = (await client.post(URL, json=body | fields)).json()
    thinking, before, call, after = answer["content"]
    assert thinking.pop("signature")
    assert thinking == {"type": "thinking", "thinking": "I think"}
    assert before == {"type": "text", "text": "Let me look."}
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "look", "input": {"at": "sky"}}
    assert after == {"type": "text", "text": "\n\nAnd."}
    assert answer["usage"]["output_tokens_details"] == {"thinking_tokens": 3}


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (Script(), "end_turn", None),
        (Script(finish_reason=FinishReason.LENGTH), "max_tokens", None),
        (Script(stop_string="END"), "stop_sequence", "END"),
        (Script(steps=[CALL]), "tool_use", None),
        (Script(steps=[CALL], finish_reason=FinishReason.LENGTH), "max_tokens", None),
        (Script(steps=[CALL], stop_string="END"), "stop_sequence", "END"),
    ],
    ids=str,
)
async def test_stop_reason(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    script: Script,
    reason: str,
    sequence: str | None,
) -> None:
    engine.scripts = [script]
    answer = (await client.post(URL, json=body | {"tools": [TOOL]})).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


async def test_calls_stay_text_with_tool_choice_none(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=[CALL])]
    fields = {"tools": [TOOL], "tool_choice": {"type": "none"}}
    answer = (await client.post(URL, json=body | fields)).json()
    assert answer["content"] == [{"type": "text", "text": CALL}]


async def test_limits_and_retention_reach_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    fields = {"stop_sequences": ["a", "b"], "retain_prefix": False, "priority": 3, "cache_ttl_s": 9}
    await client.post(URL, json=body | fields)
    (request,) = engine.requests
    assert (request.max_tokens, request.stop) == (100, ("a", "b"))
    assert request.cache_policy == CachePolicy(retain=False, priority=3, ttl_s=9.0)


async def test_sampling_fields_reach_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    await client.post(URL, json=body | {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7})
    assert engine.requests[0].sampling == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=40, seed=7
    )


@pytest.mark.parametrize("query", ["", "?beta=true"])
async def test_headers_of_clients_are_accepted(
    client: httpx.AsyncClient, body: dict[str, Any], query: str
) -> None:
    headers = {
        "x-api-key": "none",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "interleaved-thinking-2025-05-14",
    }
    response = await client.post(URL + query, json=body, headers=headers)
    assert response.status_code == 200


async def test_response_has_the_request_id_in_headers(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    response = await client.post(URL, json=body)
    names = {response.headers["request-id"], response.headers["x-request-id"]}
    assert names | {response.json()["id"], engine.requests[0].request_id} == names
    assert len(names) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled"}, "enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ],
    ids=str,
)
async def test_thinking_reaches_the_prompt(
    client: httpx.AsyncClient,
    prompt_builder: FakePromptBuilder,
    body: dict[str, Any],
    fields: dict[str, Any],
    expected: bool | None,
) -> None:
    await client.post(URL, json=body | fields)
    assert prompt_builder.conversations[0].enable_thinking is expected


async def test_effort_is_a_template_variable(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    await client.post(URL, json=body | {"output_config": {"effort": "low"}})
    assert prompt_builder.conversations[0].variables == {"reasoning_effort": "low"}


async def test_tools_become_chat_functions(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b"]}
    tool = {
        "input_schema": schema,
        "name": "look",
        "description": "Looks.",
        "type": "custom",
        "cache_control": {"type": "ephemeral"},
        "strict": True,
    }
    await client.post(URL, json=body | {"tools": [tool]})
    function = {"name": "look", "description": "Looks.", "parameters": schema}
    # The order of keys is part of the prompt.
    assert repr(prompt_builder.conversations[0].tools) == repr(
        [{"type": "function", "function": function}]
    )


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


CALLED = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sky", "n": [1]}}
AS_CALL = {
    "id": "t1",
    "type": "function",
    "function": {"name": "look", "arguments": {"at": "sky", "n": [1]}},
}
CONVERSATIONS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "text": ({"messages": [USER]}, [USER]),
    "blocks of text": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [text("a", cache_control={"type": "ephemeral"}), text("b")],
                }
            ]
        },
        [{"role": "user", "content": "ab"}],
    ),
    "no blocks": (
        {"messages": [{"role": "user", "content": []}]},
        [{"role": "user", "content": ""}],
    ),
    "system": (
        {"messages": [USER], "system": "Be kind."},
        [{"role": "system", "content": "Be kind."}, USER],
    ),
    "blocks of system": (
        {"messages": [USER], "system": [text("Be kind."), text(" And brief.", citations=None)]},
        [{"role": "system", "content": "Be kind. And brief."}, USER],
    ),
    "empty system": ({"messages": [USER], "system": ""}, [USER]),
    "no blocks of system": ({"messages": [USER], "system": []}, [USER]),
    "system of bookkeeping alone": (
        {"messages": [USER], "system": [text("x-anthropic-billing-header: a=1;")]},
        [USER],
    ),
    "system in the middle": (
        {"messages": [USER, {"role": "system", "content": [text("Be brief.")]}, USER]},
        [USER, {"role": "system", "content": "Be brief."}, USER],
    ),
    "bookkeeping of a client in a block": (
        {
            "messages": [USER],
            "system": [text("x-anthropic-billing-header: a=1;"), text("Be kind.")],
        },
        [{"role": "system", "content": "Be kind."}, USER],
    ),
    "bookkeeping of a client in a line": (
        {"messages": [USER], "system": "x-anthropic-billing-header: a=1;\nBe kind."},
        [{"role": "system", "content": "Be kind."}, USER],
    ),
    "bookkeeping within a text is text": (
        {"messages": [USER], "system": "See x-anthropic-billing-header: a=1;"},
        [{"role": "system", "content": "See x-anthropic-billing-header: a=1;"}, USER],
    ),
    "answer": (
        {"messages": [USER, {"role": "assistant", "content": "Hello."}, USER]},
        [USER, {"role": "assistant", "content": "Hello."}, USER],
    ),
    "answer in blocks": (
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "redacted_thinking", "data": "x"},
                        text("Let me."),
                        CALLED,
                    ],
                },
            ]
        },
        [
            USER,
            {
                "role": "assistant",
                "content": "Let me.",
                "reasoning_content": "Hm.",
                "tool_calls": [AS_CALL],
            },
        ],
    ),
    "results and text": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "blue"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "t2",
                            "content": [text("gr"), text("ey")],
                            "is_error": True,
                        },
                        {"type": "tool_result", "tool_use_id": "t3"},
                        text("And"),
                        text(" now?"),
                    ],
                }
            ]
        },
        [
            {"role": "tool", "tool_call_id": "t1", "content": "blue"},
            {"role": "tool", "tool_call_id": "t2", "content": "grey"},
            {"role": "tool", "tool_call_id": "t3", "content": ""},
            {"role": "user", "content": "And now?"},
        ],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_conversation_becomes_chat_messages(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any], name: str
) -> None:
    fields, expected = CONVERSATIONS[name]
    response = await client.post(URL, json=body | fields)
    assert response.status_code == 200
    assert prompt_builder.conversations[0].messages == expected


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (USER, False),
        ({"role": "assistant", "content": "The answer is"}, True),
        ({"role": "assistant", "content": [text("The answer is")]}, True),
        ({"role": "assistant", "content": [CALLED]}, False),
    ],
    ids=str,
)
async def test_assistant_text_at_the_end_is_continued(
    client: httpx.AsyncClient,
    prompt_builder: FakePromptBuilder,
    body: dict[str, Any],
    last: dict[str, Any],
    expected: bool,
) -> None:
    await client.post(URL, json=body | {"messages": [USER, last]})
    assert prompt_builder.conversations[0].continue_final_message is expected


async def test_count_tokens_returns_the_length_of_the_prompt(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    del body["max_tokens"]
    response = await client.post(f"{URL}/count_tokens", json=body | {"system": "Be kind."})
    assert response.json() == {"input_tokens": len(b"system: Be kind.\nuser: Hi\n")}
    assert engine.requests == []
