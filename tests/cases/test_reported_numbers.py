"""Cases 74 and 75: what the server says about reuse is there, is a number, and adds up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cases.profiles import Profile, every_profile
from tests.cases.server import MODEL, Message, Serve, Server
from tests.cases.session import Session, assert_hit, assert_miss


def _events(server: Server, messages: list[Message], **options: Any) -> list[dict[str, Any]]:
    """The data of a stream as it is on the wire."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": True, **options}
    response = server.post_raw(json.dumps(body)).raise_for_status()
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = response.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def _cached_tokens(usage: dict[str, Any]) -> Any:
    return usage["prompt_tokens_details"]["cached_tokens"]


@every_profile
def test_case_74_cached_tokens_are_an_integer_on_miss_and_hit(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    messages = Session(server, 74).messages_with("Hello!")
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 8})
    miss, hit = (server.post_raw(body).json()["usage"] for _ in range(2))
    assert (type(_cached_tokens(miss)), _cached_tokens(miss)) == (int, 0)
    assert type(_cached_tokens(hit)) is int
    assert _cached_tokens(hit) > 0


STREAM_OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"stream_options": {"include_usage": True}}], ids=["plain", "include-usage"]
)


@every_profile
@STREAM_OPTIONS
def test_case_74_last_chunk_has_cached_tokens_on_miss_and_hit(
    serve: Serve, profile: Profile, options: dict[str, Any]
) -> None:
    server = serve(profile)
    messages = Session(server, 74).messages_with("Hello!")
    miss, hit = (_events(server, messages, **options)[-1]["usage"] for _ in range(2))
    assert (type(_cached_tokens(miss)), _cached_tokens(miss)) == (int, 0)
    assert type(_cached_tokens(hit)) is int
    assert _cached_tokens(hit) > 0


@STREAM_OPTIONS
def test_case_74_only_the_last_chunk_has_numbers(serve: Serve, options: dict[str, Any]) -> None:
    server = serve()
    *events, last = _events(server, Session(server, 74).messages_with("Hello!"), **options)
    assert last["usage"]
    assert [event for event in events if event.get("usage")] == []


def test_case_74_cached_tokens_are_zero_where_reuse_is_off(serve: Serve) -> None:
    server = serve(Profile(entries=0), prefix_reuse=False)
    messages = Session(server, 74).messages_with("Hello!")
    for _ in range(2):
        cached = _cached_tokens(_events(server, messages)[-1]["usage"])
        assert (type(cached), cached) == (int, 0)


@pytest.mark.parametrize("profile", [Profile(), Profile(2, 2, "drop")], ids=str)
def test_case_75_hit_computes_the_answer_and_the_new_turn_only(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    session = Session(server, 75, num_notes=110)
    with server.one_lane_left():
        first = session.begin()
        server.ask_side()
        second = session.recall()
    assert_hit(second, first)
    assert second.computed <= first.completion_tokens + 32


@every_profile
def test_case_75_computed_and_cached_add_up_to_the_prompt(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    session = Session(server, 75)
    replies = [session.begin(), server.ask_side(), session.say("Thanks!"), session.begin()]
    assert_miss(replies[0])
    for reply in replies:
        assert reply.computed + reply.cached == reply.prompt_tokens
        assert reply.computed >= 1
