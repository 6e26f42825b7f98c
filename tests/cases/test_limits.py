"""Cases 65 and 71: prompts that exceed the context, and the limits of an answer."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from tests.cases.profiles import Profile, every_profile, whole_and_streamed
from tests.cases.server import CONTEXT_TOKENS, MODEL, Message, Reply, Serve, Server
from tests.cases.session import Session, assert_hit

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.engine.build import LoadedModel

LONG: list[Message] = [{"role": "user", "content": "Repeat these words: falcon river maple. " * 30}]


@pytest.fixture(scope="module")
def prompt_tokens(loaded_model: LoadedModel) -> int:
    """The number of tokens of the long prompt."""
    tokenizer = loaded_model.tokenizer
    builder = PromptBuilder(tokenizer, loaded_model.template, EchoIndex(tokenizer))
    return len(builder.build(Conversation(LONG)).token_ids)


@every_profile
def test_case_65_prompt_beyond_the_context_is_refused_with_length_and_limit(
    serve: Serve, profile: Profile, prompt_tokens: int
) -> None:
    server = serve(profile, max_context=prompt_tokens - 1)
    response = server.post_raw(json.dumps({"model": MODEL, "messages": LONG}))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert f"{prompt_tokens} tokens" in error["message"]
    assert f"{prompt_tokens - 1} tokens" in error["message"]


@whole_and_streamed
def test_case_65_prompt_that_fills_the_context_is_refused(
    serve: Serve, prompt_tokens: int, stream: bool
) -> None:
    server = serve(max_context=prompt_tokens)
    with pytest.raises(openai.BadRequestError) as caught:
        server.ask(LONG, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_case_65_prompt_that_leaves_one_token_gets_one_token(
    serve: Serve, prompt_tokens: int
) -> None:
    server = serve(max_context=prompt_tokens + 1)
    reply = server.ask(LONG, **server.endless)
    assert (reply.completion_tokens, reply.finish_reason) == (1, "length")


def test_case_65_refusal_does_not_wait_for_a_lane(serve: Serve, prompt_tokens: int) -> None:
    server = serve(max_context=prompt_tokens - 1)
    session = Session(server, 65, num_notes=2)
    with server.streaming(session.messages_with(session.opening)):
        response = server.post_raw(json.dumps({"model": MODEL, "messages": LONG}))
        assert server.registry()["running"] == 1
    assert response.status_code == 400


@every_profile
def test_case_65_refusal_leaves_the_kept_session_unchanged(
    serve: Serve, profile: Profile, prompt_tokens: int
) -> None:
    server = serve(profile, max_context=prompt_tokens - 1)
    session = Session(server, 65, num_notes=12)
    first = session.begin()
    before = server.settle()
    assert server.post_raw(json.dumps({"model": MODEL, "messages": LONG})).status_code == 400
    after = server.settle()
    assert after["pools"] == before["pools"]
    second = session.recall()
    assert_hit(second, first)
    assert second.attach == "none"


LIMIT_NAMES = pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])


def _ask(server: Server, **options: Any) -> Reply:
    """Request an answer that ends only at its limit."""
    options = {"max_tokens": None, **options}
    return server.ask([{"role": "user", "content": "Hello!"}], **server.endless, **options)


@LIMIT_NAMES
@pytest.mark.parametrize("value", [0, -1])
def test_case_71_limit_below_one_is_refused(serve: Serve, name: str, value: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        _ask(serve(), **{name: value})
    assert (caught.value.code, caught.value.param) == ("invalid_request", name)


@pytest.mark.parametrize("profile", [Profile(), Profile(2, 2, "drop")], ids=str)
@LIMIT_NAMES
@pytest.mark.parametrize("value", [1, 65])
def test_case_71_answer_is_as_long_as_its_limit(
    serve: Serve, profile: Profile, name: str, value: int
) -> None:
    reply = _ask(serve(profile), **{name: value})
    assert (reply.completion_tokens, reply.finish_reason) == (value, "length")


@LIMIT_NAMES
@whole_and_streamed
def test_case_71_smaller_of_two_limits_applies(serve: Serve, name: str, stream: bool) -> None:
    limits = {"max_tokens": 9, "max_completion_tokens": 9, name: 5}
    assert _ask(serve(), stream=stream, **limits).completion_tokens == 5


@pytest.mark.parametrize("value", [None, CONTEXT_TOKENS, 10**9], ids=["missing", "context", "huge"])
@whole_and_streamed
def test_case_71_answer_without_a_limit_below_the_context_fills_the_context(
    serve: Serve, value: int | None, stream: bool
) -> None:
    reply = _ask(serve(Profile(2), max_context=256), max_tokens=value, stream=stream)
    assert reply.prompt_tokens + reply.completion_tokens == 256
    assert reply.finish_reason == "length"


def test_case_71_answer_that_stops_stays_below_its_limit(serve: Serve) -> None:
    reply = serve().ask([{"role": "user", "content": "Hello!"}], max_tokens=10**9)
    assert reply.finish_reason == "stop"
    assert reply.completion_tokens < CONTEXT_TOKENS
