"""Cases 28, 29, 34 and 35: echoes that tokenise differently, and unusual or invalid bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cases.profiles import (
    WITH_REGISTRY,
    Profile,
    every_profile,
    with_registry_and_streams,
    without_registry,
)
from tests.cases.server import MODEL, Message, Reply, Serve
from tests.cases.session import BOUNDARY_TOKENS, Session, assert_hit, assert_miss

# A thinking prompt ends with "<think>\n". The template drops reasoning from history, so that the
# next prompt differs from this mark and line break on.
OPEN_THINK_TOKENS = 2

keep_profiles = pytest.mark.parametrize(
    "profile", [p for p in WITH_REGISTRY if p.current_state == "keep"], ids=str
)
drop_profiles = pytest.mark.parametrize(
    "profile", [p for p in WITH_REGISTRY if p.current_state == "drop"], ids=str
)


def _two_turns(
    serve: Serve, profile: Profile, *, keeps_reasoning: bool = False, **options: Any
) -> tuple[Reply, Reply]:
    """A1, a side request, and A2, which echoes the answer of A1."""
    server = serve(profile)
    session = Session(server, 28, **options)
    first = session.begin(keeps_reasoning=keeps_reasoning)
    with server.one_lane_left():
        server.ask_side()
        return first, session.recall()


@with_registry_and_streams
def test_case_28_echo_without_reasoning_prefills_only_the_answer_and_the_new_turn(
    serve: Serve, profile: Profile, stream: bool
) -> None:
    first, second = _two_turns(serve, profile, enable_thinking=True, stream=stream)
    assert first.reasoning
    assert second.cached == first.prompt_tokens - OPEN_THINK_TOKENS


@without_registry
def test_case_28_session_with_reasoning_misses_without_a_registry(
    serve: Serve, profile: Profile
) -> None:
    _, second = _two_turns(serve, profile, enable_thinking=True)
    assert_miss(second)


THINKS_AND_PRESERVES = {
    "enable_thinking": True,
    "preserve_thinking": True,
    "keeps_reasoning": True,
}


@keep_profiles
def test_case_28_echoed_reasoning_appends_to_the_frontier(serve: Serve, profile: Profile) -> None:
    first, second = _two_turns(serve, profile, **THINKS_AND_PRESERVES)
    # The last token is sampled but never computed.
    assert second.cached == first.prompt_tokens + first.completion_tokens - 1
    assert (second.path, second.attach) == ("append_frontier", "registry")


@drop_profiles
def test_case_28_echoed_reasoning_restores_the_turn_checkpoint_with_drop(
    serve: Serve, profile: Profile
) -> None:
    first, second = _two_turns(serve, profile, **THINKS_AND_PRESERVES)
    assert_hit(second, first)
    assert (second.path, second.attach) == ("restore_turn_checkpoint", "registry")


@pytest.mark.parametrize("profile", [Profile(), Profile(2, 2, "drop")], ids=str)
def test_case_29_session_without_thinking_hits(serve: Serve, profile: Profile) -> None:
    first, second = _two_turns(serve, profile, enable_thinking=False)
    assert second.cached == first.prompt_tokens - BOUNDARY_TOKENS


def test_case_28_echo_of_streamed_reasoning_appends_to_the_frontier(serve: Serve) -> None:
    first, second = _two_turns(serve, Profile(), **THINKS_AND_PRESERVES, stream=True)
    assert second.cached == first.prompt_tokens + first.completion_tokens - 1


def test_case_29_preserved_empty_reasoning_appends_to_the_frontier(serve: Serve) -> None:
    first, second = _two_turns(serve, Profile(), enable_thinking=False, preserve_thinking=True)
    assert second.cached == first.prompt_tokens + first.completion_tokens - 1


def test_case_29_session_without_thinking_misses_without_a_registry(serve: Serve) -> None:
    _, second = _two_turns(serve, Profile(entries=0), enable_thinking=False)
    assert_miss(second)


def _echo_cut_answer(
    serve: Serve, profile: Profile, *, stream: bool, **options: Any
) -> tuple[Reply, Reply]:
    server = serve(profile)
    session = Session(server, 34, **options)
    first = session.begin(max_tokens=7, stream=stream)
    with server.one_lane_left():
        server.ask_side()
        return first, session.recall()


@with_registry_and_streams
def test_case_34_echo_of_an_answer_cut_after_7_tokens_hits(
    serve: Serve, profile: Profile, stream: bool
) -> None:
    first, second = _echo_cut_answer(serve, profile, stream=stream)
    assert (first.completion_tokens, first.finish_reason) == (7, "length")
    assert_hit(second, first)


def test_case_34_echo_of_a_cut_answer_appends_if_the_history_is_unchanged(serve: Serve) -> None:
    first, second = _echo_cut_answer(serve, Profile(), stream=False, preserve_thinking=True)
    assert second.cached == first.prompt_tokens + 7 - 1


def test_case_34_echo_of_a_cut_answer_misses_without_a_registry(serve: Serve) -> None:
    _, second = _echo_cut_answer(serve, Profile(entries=0), stream=False)
    assert_miss(second)


USER: Message = {"role": "user", "content": "Hello!"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
RESULT: Message = {"role": "tool", "tool_call_id": "c1", "content": "found"}

SERVED: dict[str, list[Message]] = {
    "empty content": [{"role": "user", "content": ""}],
    "no parts": [{"role": "user", "content": []}],
    "white space": [{"role": "user", "content": " \n\t "}],
    "null beside tool calls": [
        USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT,
    ],
    "null answer": [USER, {"role": "assistant", "content": None}, USER],
    "no tool calls": [USER, {"role": "assistant", "content": "Hi.", "tool_calls": []}, USER],
    "two users in a row": [USER, USER],
    "assistant first": [{"role": "assistant", "content": "Hello!"}, USER],
    "assistant only": [{"role": "assistant", "content": "Hello!"}],
    "empty answer last": [USER, {"role": "assistant", "content": ""}],
    "system only": [{"role": "system", "content": "You answer briefly."}],
    "tool result first": [RESULT],
    "control tokens as text": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\nHi"}],
}  # fmt: skip

REFUSED: dict[str, tuple[Any, int, str | None]] = {
    "no messages": ([], 400, "messages"),
    "null content": ([{"role": "user", "content": None}], 400, "messages[0].content"),
    "missing content": ([{"role": "user"}], 400, "messages[0].content"),
    "null tool result": ([USER, {**RESULT, "content": None}], 400, "messages[1].content"),
    "unknown role": ([{"role": "king", "content": "Hi"}], 400, "messages[0].role"),
    "image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
        400, "messages[0].content[0].type",
    ),
    "number as content": ([{"role": "user", "content": 5}], 422, "messages.0.content"),
    "text as message": (["Hello!"], 422, "messages.0"),
    "one message without a list": (USER, 422, "messages"),
    "null messages": (None, 422, "messages"),
}  # fmt: skip

INVALID_BODIES = (b"", b"{", b"null", b"[]", b"\xff\xfe", b"{}", b'{"model": "kvreg-reference"}')


def _body(messages: Any, **options: Any) -> str:
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 8, **options})


def test_case_35_unusual_conversations_are_streamed_to_the_end(serve: Serve) -> None:
    server = serve()
    ends = {
        name: server.post_raw(_body(messages, stream=True)).text.splitlines()[-2]
        for name, messages in SERVED.items()
    }
    assert ends == dict.fromkeys(SERVED, "data: [DONE]")


def test_case_35_next_turn_of_unusual_conversations_hits(serve: Serve) -> None:
    server = serve()
    missed = []
    for name, messages in SERVED.items():
        first = server.ask(messages, max_tokens=8)
        if not server.ask([*messages, first.echo, USER], max_tokens=8).cached:
            missed.append(name)
    assert missed == []


def test_case_35_conversations_that_cannot_be_rendered_are_refused_with_the_parameter(
    serve: Serve,
) -> None:
    server = serve()
    refusals = {}
    for name, (messages, _, _) in REFUSED.items():
        response = server.post_raw(_body(messages, stream=True))
        refusals[name] = (messages, response.status_code, response.json()["error"]["param"])
    assert refusals == REFUSED


def test_case_35_invalid_bodies_are_refused_with_a_message(serve: Serve) -> None:
    server = serve()
    for content in INVALID_BODIES:
        response = server.post_raw(content)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (422, "unprocessable_body"), content
        assert error["message"], content


@every_profile
def test_case_35_refused_body_leaves_the_kept_session_unchanged(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    session = Session(server, 35)
    first = session.begin()
    for messages, status, _ in REFUSED.values():
        assert server.post_raw(_body(messages)).status_code == status
    second = session.recall()
    assert_hit(second, first)
    assert second.attach == "none"
