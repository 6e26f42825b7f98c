"""Chat completions: body, usage, and the input of the engine and of the prompt builder."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvreg_service.api.app import create_app
from kvreg_service.core.errors import InvalidRequest
from kvreg_service.core.labels import Attach, FinishReason, ReusePath
from kvreg_service.core.requests.request import CachePolicy
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.settings import Settings
from kvreg_service.testing.fake_engine import FakeEngine, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"


async def test_answer_is_the_text_of_all_deltas(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    response = await client.post(URL, json=body)
    answer = response.json()
    assert response.status_code == 200
    assert answer["object"] == "chat.completion"
    assert answer["model"] == body["model"]
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, you."},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


async def test_usage_counts_what_the_engine_reported(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [
        Script(
            cached_tokens=4, reuse_path=ReusePath.RESTORE_TURN_CHECKPOINT, attach=Attach.REGISTRY
        )
    ]
    prompt_tokens = len(b"user: Hi\n")
    usage = (await client.post(URL, json=body)).json()["usage"]
    assert usage == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 3,
        "total_tokens": prompt_tokens + 3,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "kvreg": {
            "reuse_path": "restore_turn_checkpoint",
            "attach": "registry",
            "computed_tokens": prompt_tokens - 4,
        },
    }


async def test_cached_tokens_are_the_integer_zero_on_a_miss(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    usage = (await client.post(URL, json=body)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage["kvreg"]["computed_tokens"] == usage["prompt_tokens"]


async def test_timings_are_those_of_the_engine(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    timings = (await client.post(URL, json=body)).json()["timings"]
    assert timings == {
        "queue_s": 0.25,
        "attach_s": 0.125,
        "prefill_s": 0.5,
        "decode_s": 2.0,
        "ttft_s": 0.875,
    }


async def test_finish_reason_length_is_passed_on(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(finish_reason=FinishReason.LENGTH)]
    answer = (await client.post(URL, json=body)).json()
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_reasoning_is_separate_from_content(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["I ", "think", "\n</think>\n\n", "So", "."])]
    answer = (await client.post(URL, json=body | {"enable_thinking": True})).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I think", "So.")


async def test_reasoning_tokens_are_counted_separately(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["I ", "think", "\n</think>\n\n", "So", "."])]
    usage = (await client.post(URL, json=body | {"enable_thinking": True})).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}


async def test_answer_cut_within_its_reasoning_has_empty_content(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.scripts = [Script(steps=["I think"], finish_reason=FinishReason.LENGTH)]
    answer = (await client.post(URL, json=body | {"enable_thinking": True})).json()
    assert answer["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 1}, 1),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 10**30}, 10**30),
    ],
)
async def test_smaller_token_limit_reaches_the_engine(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    fields: dict[str, Any],
    expected: int | None,
) -> None:
    await client.post(URL, json=body | fields)
    assert engine.requests[0].max_tokens == expected


@pytest.mark.parametrize(
    ("stop", "expected"), [(None, ()), ("END", ("END",)), ([], ()), (["a", "b"], ("a", "b"))]
)
async def test_stop_is_a_string_or_a_list(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    stop: object,
    expected: tuple[str, ...],
) -> None:
    await client.post(URL, json=body | {"stop": stop})
    assert engine.requests[0].stop == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"retain_prefix": False}, False),
        ({"retain_prefix": True}, True),
        ({"prompt_cache_read_only": True}, False),
        ({"prompt_cache_read_only": False}, True),
        ({"retain_prefix": False, "prompt_cache_read_only": False}, False),
    ],
)
async def test_retention_has_two_names(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    body: dict[str, Any],
    fields: dict[str, Any],
    expected: bool,
) -> None:
    await client.post(URL, json=body | fields)
    assert engine.requests[0].cache_policy.retain is expected


async def test_priority_and_time_to_live_reach_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    await client.post(URL, json=body | {"priority": 3, "cache_ttl_s": 60})
    assert engine.requests[0].cache_policy == CachePolicy(priority=3, ttl_s=60.0)


async def test_sampling_fields_reach_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "seed": 7,
        "logit_bias": {"5": -100, "6": 1.5},
    }
    await client.post(URL, json=body | fields)
    assert engine.requests[0].sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.1,
        seed=7,
        logit_bias={5: -100.0, 6: 1.5},
    )


async def test_missing_sampling_fields_take_the_defaults_of_the_model(
    engine: FakeEngine, prompt_builder: FakePromptBuilder, settings: Settings, body: dict[str, Any]
) -> None:
    defaults = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
    app = create_app(engine, prompt_builder, settings, sampling_defaults=defaults)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        await client.post(URL, json=body | {"top_p": 0.5, "top_k": -1, "temperature": None})
    assert engine.requests[0].sampling == SamplingParams(temperature=0.6, top_p=0.5, top_k=None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"enable_thinking": True}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "none", "enable_thinking": True}, True),
        ({"reasoning_effort": "high"}, None),
    ],
)
async def test_thinking_has_several_switches(
    client: httpx.AsyncClient,
    prompt_builder: FakePromptBuilder,
    body: dict[str, Any],
    fields: dict[str, Any],
    expected: bool | None,
) -> None:
    await client.post(URL, json=body | fields)
    assert prompt_builder.conversations[0].enable_thinking is expected


async def test_template_variables_reach_the_prompt(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    kwargs = {"preserve_thinking": True, "persona": "pirate"}
    await client.post(URL, json=body | {"chat_template_kwargs": kwargs})
    assert prompt_builder.conversations[0].template_variables == kwargs


async def test_tools_reach_the_prompt_unchanged(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    function = {"parameters": {"b": 1, "a": 2}, "name": "look", "x": None}
    tools = [{"function": function, "type": "function"}]
    await client.post(URL, json=body | {"tools": tools, "tool_choice": "none"})
    seen = prompt_builder.conversations[0].tools
    assert seen is not None
    assert repr(list(seen)) == repr(tools)


async def test_echoed_answer_with_all_fields_of_a_client_is_accepted(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    echo = {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning_content": "I think",
    }
    messages = [*body["messages"], echo, {"role": "user", "content": "And?"}]
    response = await client.post(URL, json=body | {"messages": messages})
    assert response.status_code == 200
    assert prompt_builder.conversations[0].messages[1] == {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "I think",
    }


async def test_prompt_that_cannot_be_built_is_the_clients_error(
    client: httpx.AsyncClient, prompt_builder: FakePromptBuilder, body: dict[str, Any]
) -> None:
    prompt_builder.error = InvalidRequest("roles must alternate", param="messages")
    response = await client.post(URL, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "roles must alternate"


async def test_response_has_the_request_id_in_a_header(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    response = await client.post(URL, json=body)
    ids = {response.headers["x-request-id"], response.json()["id"], engine.requests[0].request_id}
    assert len(ids) == 1
