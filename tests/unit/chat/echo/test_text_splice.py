"""A generated text replaces exactly the rendering of its message, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvreg_service.chat.echo.text_splice import TextSplice
from kvreg_service.chat.messages import Message

Render = Callable[[Sequence[Message]], str]

_MESSAGES: list[Message] = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f"}}]},
    {"role": "tool", "content": "here"},
    {"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "g"}}]},
    {"role": "user", "content": "Good."},
]


def _chatml(messages: Sequence[Message]) -> str:
    """Each message with its content and calls between markers."""
    return "".join(f"<s>{m['role']}\n{_body(m)}<e>" for m in messages) + "<s>"


def _body(message: Message) -> str:
    calls = message.get("tool_calls")
    names = [call["function"]["name"] for call in calls] if isinstance(calls, list) else []
    return "".join([str(message["content"]), *(f"[{name}]" for name in names)])


def _spliced(
    render: Render,
    texts: dict[int, str],
    parses_to: Callable[[str, int], bool] = lambda text, i: text == _body(_MESSAGES[i]),
) -> str:
    splice = TextSplice(texts).verified(_MESSAGES, render, parses_to)
    return splice.fill(render(splice.mark(_MESSAGES)))


def test_a_generated_text_replaces_its_message() -> None:
    assert _spliced(_chatml, {1: "A!"}) == _chatml(_MESSAGES).replace("a[f]", "A!")


def test_several_texts_replace_their_messages() -> None:
    expected = _chatml(_MESSAGES).replace("a[f]", "A!").replace("b[g]", "B!")
    assert _spliced(_chatml, {1: "A!", 3: "B!"}) == expected


def test_without_texts_nothing_is_rendered() -> None:
    def never(_: Sequence[Message]) -> str:
        raise AssertionError("rendered")

    assert TextSplice({}).verified(_MESSAGES, never, lambda *_: True).mark(_MESSAGES) == _MESSAGES


def test_a_message_that_reads_differently_keeps_its_form() -> None:
    expected = _chatml(_MESSAGES).replace("b[g]", "B!")
    assert _spliced(_chatml, {1: "A!", 3: "B!"}, lambda _, i: i == 3) == expected


def test_a_generated_text_may_contain_a_placeholder() -> None:
    assert "\ufdd23\ufdd2" in _spliced(_chatml, {1: "\ufdd23\ufdd2"})


@pytest.mark.parametrize(
    "render",
    [
        lambda messages: _chatml(messages) + str(sum("tool_calls" in m for m in messages)),
        lambda messages: str(sum("tool_calls" in m for m in messages)) + _chatml(messages),
        lambda messages: _chatml([m for m in messages if "tool_calls" in m]),
        lambda messages: _chatml([m for m in messages if "tool_calls" not in m]),
        lambda messages: _chatml(messages) * 2,
        lambda messages: _chatml(messages[::-1]),
        lambda messages: "".join(_body(m) for m in messages[1:2]),
        lambda messages: "".join(_body(m) for m in messages if m["role"] == "assistant"),
        lambda messages: _chatml([{**m, "content": str(m["content"])[:2]} for m in messages]),
        lambda _: "nothing",
    ],
    ids=[
        "counts calls at the end", "counts calls at the beginning", "drops what has no calls",
        "drops calls", "says everything twice", "turns the order", "has nothing around", "has "
        "nothing between", "cuts contents", "says nothing",
    ],
)  # fmt: skip
def test_a_template_that_does_more_than_write_messages_keeps_its_form(render: Render) -> None:
    assert _spliced(render, {1: "A!", 3: "B!"}, lambda *_: True) == render(_MESSAGES)


def test_a_client_that_writes_a_mark_keeps_the_form_of_the_template() -> None:
    messages = [{"role": "user", "content": "\ufdd21\ufdd2"}, *_MESSAGES[1:]]
    splice = TextSplice({1: "A!"}).verified(messages, _chatml, lambda *_: True)
    assert splice.fill(_chatml(splice.mark(messages))) == _chatml(messages)
