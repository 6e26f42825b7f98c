"""A generated text is found by the content of its message, in the same conversation only."""

from __future__ import annotations

import pytest

from kvreg_service.chat.echo.generated_texts import GeneratedAnswer, GeneratedTextIndex, digests
from kvreg_service.chat.messages import Message, normalize_messages
from kvreg_service.chat.tool_calls.tool_call import ToolCall

_USER = {"role": "user", "content": "Where?"}
_ANSWER = GeneratedAnswer("So:", [ToolCall("look", {"at": "sky", "days": 3})], "GENERATED")


def _call(arguments: object, name: str = "look", **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def _echo(*calls: dict[str, object], content: object = "So:", **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def _found(index: GeneratedTextIndex, *messages: dict[str, object]) -> str | None:
    normal: list[Message] = normalize_messages(list(messages))
    return index.find("a tenant", digests(normal)[-1])


@pytest.fixture
def index() -> GeneratedTextIndex:
    index = GeneratedTextIndex()
    index.record("a tenant", digests(normalize_messages([_USER]))[-1], _ANSWER)
    return index


@pytest.mark.parametrize(
    "echo",
    [
        _echo(_call('{"at": "sky", "days": 3}', id="c1")),
        _echo(_call('{"days":3,"at":"sky"}', id="c2")),
        _echo(_call({"at": "sky", "days": 3})),
        _echo(_call('{"at": "\\u0073ky", "days": 3.0}')),
        _echo(_call('{"at": "sky", "days": 3}'), reasoning_content="Hm."),
        _echo(_call('{"at": "sky", "days": 3}'), content=[{"type": "text", "text": "So:"}]),
        _echo(_call('{"at": "sky", "days": 3}'), refusal=None, annotations=[]),
    ],
    ids=str,
)
def test_an_echo_is_known_however_its_client_writes_it(
    index: GeneratedTextIndex, echo: dict[str, object]
) -> None:
    assert _found(index, _USER, echo) == "GENERATED"


@pytest.mark.parametrize(
    "echo",
    [
        _echo(_call('{"at": "sky", "days": 4}')),
        _echo(_call('{"at": "sky", "days": "3"}')),
        _echo(_call('{"at": "sky"}')),
        _echo(_call('{"at": "sky", "days": 3}', name="see")),
        _echo(_call('{"at": "sky", "days": 3}'), content="So"),
        _echo(_call('{"at": "sky", "days": 3}'), content=None),
        _echo(_call('{"at": "sky", "days": 3}'), _call("{}")),
        _echo(_call('{"at": "sky", "days": 3')),
    ],
    ids=str,
)
def test_another_message_is_not_known(index: GeneratedTextIndex, echo: dict[str, object]) -> None:
    assert _found(index, _USER, echo) is None


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"role": "user", "content": "Why?"}],
        [{"role": "system", "content": "Where?"}],
        [_USER, _USER],
    ],
)
def test_another_conversation_does_not_know_it(
    index: GeneratedTextIndex, history: list[dict[str, object]]
) -> None:
    echo = _echo(_call('{"at": "sky", "days": 3}'))
    assert _found(index, *history, echo) is None


def test_another_tenant_does_not_know_it(index: GeneratedTextIndex) -> None:
    echo = normalize_messages([_USER, _echo(_call('{"at": "sky", "days": 3}'))])
    assert index.find("another tenant", digests(echo)[-1]) is None


def test_many_answers_of_another_tenant_leave_it() -> None:
    index = GeneratedTextIndex(max_characters=24)
    history = digests(normalize_messages([_USER]))[-1]
    index.record("a tenant", history, _ANSWER)
    for name in range(10):
        index.record("another tenant", bytes([name]), _ANSWER)
    assert _found(index, _USER, _echo(_call('{"at": "sky", "days": 3}'))) == "GENERATED"


def test_ids_in_the_history_make_no_difference() -> None:
    def history(call_id: str) -> list[dict[str, object]]:
        result = {"role": "tool", "content": "blue", "tool_call_id": call_id}
        return [_USER, _echo(_call("{}", id=call_id)), result]

    first, second = (digests(normalize_messages(history(name))) for name in ("a", "b"))
    assert first == second


def test_a_later_text_replaces_an_earlier_one(index: GeneratedTextIndex) -> None:
    later = GeneratedAnswer(_ANSWER.content, _ANSWER.calls, "OTHER")
    index.record("a tenant", digests(normalize_messages([_USER]))[-1], later)
    assert _found(index, _USER, _echo(_call('{"at": "sky", "days": 3}'))) == "OTHER"
    assert len(index) == 1


def test_the_oldest_makes_room() -> None:
    index = GeneratedTextIndex(max_characters=20)
    for history in (b"a", b"b", b"c"):
        index.record("a tenant", history, _ANSWER)
    assert len(index) == 2


def test_what_was_used_is_not_the_oldest() -> None:
    index = GeneratedTextIndex(max_characters=20)
    history = digests(normalize_messages([_USER]))[-1]
    index.record("a tenant", history, _ANSWER)
    index.record("a tenant", b"b", _ANSWER)
    echo = _echo(_call('{"at": "sky", "days": 3}'))
    _found(index, _USER, echo)
    index.record("a tenant", b"c", _ANSWER)
    assert _found(index, _USER, echo) == "GENERATED"


def test_what_is_larger_than_the_bound_is_not_kept() -> None:
    index = GeneratedTextIndex(max_characters=7)
    index.record("a tenant", b"a", _ANSWER)
    assert len(index) == 0
