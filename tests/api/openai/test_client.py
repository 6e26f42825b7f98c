"""The official OpenAI client against a real server on a socket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from kvreg_service.core.errors import Overloaded, RequestFailed
from kvreg_service.testing.fake_engine import FakeEngine, Gate, Script
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

MODEL = "fake-model"


def test_client_parses_answer_and_usage(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.scripts = [Script(cached_tokens=4)]
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], temperature=0, max_tokens=5
    )
    assert answer.choices[0].message.content == "Hello, you."
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_client_reads_a_stream_with_usage(openai_client: openai.OpenAI) -> None:
    stream = openai_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "Hello, you."
    assert last.usage is not None
    assert last.usage.completion_tokens == 3


def test_stream_helper_of_the_client_accumulates_the_answer(openai_client: openai.OpenAI) -> None:
    with openai_client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}]
    ) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello, you."
    assert answer.choices[0].finish_reason == "stop"


def test_answer_can_be_echoed_as_the_client_dumps_it(
    openai_client: openai.OpenAI, engine: FakeEngine, prompt_builder: FakePromptBuilder
) -> None:
    engine.scripts = [Script(steps=["I think", "</think>", "So."])]
    first = openai_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        extra_body={"enable_thinking": True},
    )
    echo = first.choices[0].message
    openai_client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "Hi"},
            echo.model_dump(),  # type: ignore[list-item]
            {"role": "user", "content": "And?"},
        ],
    )
    assert prompt_builder.conversations[1].messages[1] == {
        "role": "assistant",
        "content": "So.",
        "reasoning_content": "I think",
    }


def test_every_optional_argument_without_effect_is_accepted(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi", "name": "ann"}],
        metadata={"a": "b"},
        n=1,
        parallel_tool_calls=False,
        prompt_cache_key="x",
        reasoning_effort="low",
        response_format={"type": "text"},
        safety_identifier="x",
        service_tier="auto",
        store=False,
        user="ann",
        verbosity="low",
        logprobs=False,
        tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}],
        tool_choice="auto",
        modalities=["text"],
    )
    assert answer.choices[0].finish_reason == "stop"


def test_failure_in_a_stream_raises_in_the_client(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.scripts = [Script(steps=["Hel", RequestFailed("no luck")])]
    stream = openai_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="no luck"):
        list(stream)


def test_overload_raises_the_error_of_the_client(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.scripts = [Script(before=[Overloaded("the queue is full", retry_after_s=2.0)])]
    with pytest.raises(openai.RateLimitError) as caught:
        openai_client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}]
        )
    assert caught.value.code == "server_overloaded"
    assert caught.value.response.headers["retry-after"] == "2"


def test_refused_value_raises_with_field_and_code(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], n=3
        )
    assert (caught.value.param, caught.value.code) == ("n", "invalid_request")


def test_models_are_listed(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == [MODEL]
    assert openai_client.models.retrieve(MODEL).id == MODEL


def test_stream_reaches_the_client_before_the_answer_is_complete(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=["Hel", gate, "lo"])]
    stream = openai_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    next(stream)
    assert next(stream).choices[0].delta.content == "Hel"
    gate.open()
    assert next(stream).choices[0].delta.content == "lo"
    stream.close()


def test_probes_answer_while_requests_wait(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    gate = Gate()
    engine.scripts = [Script(before=[gate]), Script(before=[gate])]
    with ThreadPoolExecutor(1) as waiting:
        answer = waiting.submit(
            openai_client.chat.completions.create,
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
        )
        gate.wait_until_reached()
        models = openai_client.models.list()
        gate.open()
    assert [model.id for model in models] == [MODEL]
    assert answer.result().choices[0].finish_reason == "stop"


def test_closing_a_stream_in_the_client_cancels_the_request(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    gate = Gate()
    engine.scripts = [Script(steps=["Hel", gate])]
    stream = openai_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    next(stream)
    stream.close()
    assert engine.outcomes.get(timeout=1.0)[1] == "cancelled"


def test_client_parses_a_tool_call_and_echoes_it(
    openai_client: openai.OpenAI, engine: FakeEngine, prompt_builder: FakePromptBuilder
) -> None:
    text = "<tool_call>\n<function=look>\n<parameter=at>\nsky\n</parameter>\n</function>\n"
    engine.scripts = [Script(steps=["Let me look.\n\n", f"{text}</tool_call>"])]
    first = openai_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}],
    )
    echo = first.choices[0].message
    assert echo.tool_calls
    openai_client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "Hi"},
            echo.model_dump(),  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": echo.tool_calls[0].id, "content": "blue"},
        ],
    )
    sent = prompt_builder.conversations[1].messages[1]
    assert sent["content"] == "Let me look."
    assert sent["tool_calls"] == [
        {
            "id": echo.tool_calls[0].id,
            "type": "function",
            "function": {"name": "look", "arguments": '{"at": "sky"}'},
        }
    ]


def test_stream_helper_of_the_client_accumulates_tool_calls(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    text = '<tool_call>{"name": "look", "arguments": {"at": "sky", "days": 3}}</tool_call>'
    engine.scripts = [Script(steps=[text, "\n", text])]
    with openai_client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}],
    ) as stream:
        answer = stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls or []
    assert [call.function.arguments for call in calls] == ['{"at": "sky", "days": 3}'] * 2
    assert answer.choices[0].finish_reason == "tool_calls"
