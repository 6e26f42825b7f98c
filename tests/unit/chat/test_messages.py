"""Every accepted shape of message is normalized; any other is an error with its path."""

from __future__ import annotations

import pytest

from kvreg_service.chat.messages import normalize_messages
from kvreg_service.core.errors import InvalidRequest
from kvreg_service.core.labels import Tail


def _one(**message: object) -> dict[str, object]:
    return normalize_messages([message])[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        (" \n", " \n"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "input_text", "text": "a"}, "b"], "ab"),
    ],
)
@pytest.mark.parametrize("role", Tail)
def test_content_becomes_text(role: Tail, content: object, text: str) -> None:
    assert _one(role=role, content=content) == {"role": role, "content": text}


def test_developer_is_system() -> None:
    assert _one(role="developer", content="a") == {"role": "system", "content": "a"}


def test_an_assistant_may_have_no_content() -> None:
    assert _one(role="assistant", content=None)["content"] == ""


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_has_one_name(name: str) -> None:
    message = _one(role="assistant", content="a", **{name: "why"})
    assert message == {"role": "assistant", "content": "a", "reasoning_content": "why"}


def test_reasoning_of_others_is_dropped() -> None:
    assert "reasoning_content" not in _one(role="user", content="a", reasoning_content="why")


def test_metadata_of_client_libraries_is_dropped() -> None:
    message = _one(role="assistant", content="a", refusal=None, annotations=[], audio=None)
    assert message == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"city": "Ghent", "days": 2}', {"city": "Ghent", "days": 2}),
        ({"city": "Ghent"}, {"city": "Ghent"}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ('{"city": ', {"arguments": '{"city": '}),
        ("[1]", {"arguments": [1]}),
        ("9" * 5000, {"arguments": "9" * 5000}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_tool_arguments_become_a_mapping(arguments: object, parsed: dict[str, object]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = _one(role="assistant", content=None, tool_calls=[call])
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": parsed}}
    ]


@pytest.mark.parametrize("calls", [None, []])
def test_an_empty_list_of_tool_calls_is_none(calls: object) -> None:
    assert "tool_calls" not in _one(role="assistant", content="a", tool_calls=calls)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (None, "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "robot", "content": "a"}], "messages[0].role"),
        ([{"role": ["user"], "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text", "text": "a"}}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}],
            "messages[0].content[1].type",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0]"),
        (
            [{"role": "assistant", "content": "a", "reasoning": 1}],
            "messages[0].reasoning",
        ),
        ([{"role": "assistant", "tool_calls": "f()"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
def test_a_refusal_names_the_place(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalize_messages(messages)
    assert caught.value.param == param
