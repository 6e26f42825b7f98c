"""The official Anthropic client against a real server on a socket."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from kvreg_service.core.errors import Overloaded, RequestFailed
from kvreg_service.testing.fake_engine import FakeEngine, Gate, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

MODEL = "fake-model"
TOOL: Any = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}
CALL = "<tool_call>\n<function=look>\n<parameter=at>\nsky\n</parameter>\n</function>\n</tool_call>"
STEPS = ["I think", "\n</think>\n\n", "Let me look.", "\n\n", *CALL]


def ask(client: anthropic.Anthropic, **more: Any) -> anthropic.types.Message:
    arguments: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Hi"}],
        **more,
    }
    return client.messages.create(**arguments)


def test_client_parses_answer_and_usage(
    anthropic_client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.scripts = [Script(cached_tokens=4)]
    answer = ask(anthropic_client)
    assert [block.model_dump(exclude_none=True) for block in answer.content] == [
        {"type": "text", "text": "Hello, you."}
    ]
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.cache_read_input_tokens, answer.usage.output_tokens) == (4, 3)
    assert answer._request_id == answer.id


def test_stream_helper_of_the_client_accumulates_the_same_answer(
    anthropic_client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.scripts = [Script(steps=STEPS), Script(steps=STEPS)]
    more: Any = {"tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = ask(anthropic_client, **more)
    with anthropic_client.messages.stream(
        model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "Hi"}], **more
    ) as stream:
        texts = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert texts == ["Let me look."]
    without = {"id", "parsed_output"}
    assert [block.model_dump(exclude=without) for block in streamed.content] == [
        block.model_dump(exclude=without) for block in whole.content
    ]
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert streamed.usage.model_dump() == whole.usage.model_dump()


def test_answer_can_be_echoed_unchanged(
    anthropic_client: anthropic.Anthropic, engine: FakeEngine, prompt_builder: FakePromptBuilder
) -> None:
    engine.scripts = [Script(steps=STEPS)]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    first = ask(anthropic_client, tools=[TOOL], thinking=thinking)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "blue"}
    ask(
        anthropic_client,
        tools=[TOOL],
        messages=[
            {"role": "user", "content": "Hi"},
            first.to_param(),
            {"role": "user", "content": [result]},
        ],
    )
    user, answer, result = prompt_builder.conversations[1].messages
    assert user == {"role": "user", "content": "Hi"}
    assert answer == {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "I think",
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": "look", "arguments": {"at": "sky"}},
            }
        ],
    }
    assert result == {"role": "tool", "tool_call_id": call.id, "content": "blue"}


def test_every_optional_argument_without_effect_is_accepted(
    anthropic_client: anthropic.Anthropic,
) -> None:
    answer = ask(
        anthropic_client,
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        cache_control={"type": "ephemeral", "ttl": "1h"},
        metadata={"user_id": "x"},
        service_tier="auto",
        speed="standard",
        stop_sequences=["END"],
        thinking={"type": "disabled"},
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        tools=[TOOL | {"cache_control": {"type": "ephemeral"}}],
        extra_body={"temperature": 1.0, "top_p": 0.9, "top_k": 5},
    )
    assert answer.stop_reason == "end_turn"


def test_tokens_are_counted(anthropic_client: anthropic.Anthropic) -> None:
    count = anthropic_client.messages.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], system="Be kind.", tools=[TOOL]
    )
    assert count.input_tokens == len(b"system: Be kind.\nuser: Hi\n")


def test_models_are_listed(anthropic_client: anthropic.Anthropic) -> None:
    (model,) = list(anthropic_client.models.list())
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert model.created_at.tzinfo is not None
    assert anthropic_client.models.retrieve(MODEL) == model


def test_missing_model_raises(anthropic_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        anthropic_client.models.retrieve("other")


def test_failure_in_a_stream_raises_in_the_client(
    anthropic_client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.scripts = [Script(steps=["Hel", RequestFailed("no luck")])]
    stream = anthropic_client.messages.create(
        model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    with pytest.raises(anthropic.APIStatusError, match="no luck"):
        list(stream)


def test_overload_raises_the_error_of_the_client(
    anthropic_client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.scripts = [Script(before=[Overloaded("the queue is full", retry_after_s=2.0)])]
    with pytest.raises(anthropic.RateLimitError) as caught:
        ask(anthropic_client)
    assert caught.value.error_code == "server_overloaded"
    assert caught.value.response.headers["retry-after"] == "2"


def test_refused_value_raises_with_its_message(anthropic_client: anthropic.Anthropic) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "x"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type"):
        ask(anthropic_client, messages=[{"role": "user", "content": [image]}])


def test_closing_a_stream_in_the_client_cancels_the_request(
    anthropic_client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=["Hel", gate])]
    stream = anthropic_client.messages.create(
        model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    next(iter(stream))
    stream.close()
    assert engine.outcomes.get(timeout=1.0)[1] == "cancelled"
