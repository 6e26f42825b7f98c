"""Cases 17 and 30: prompts that change between turns: what is reused and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.canary import RECALL
from tests.cases.profiles import (
    Profile,
    every_profile,
    some_profiles,
    with_registry,
    without_registry,
)
from tests.cases.server import Message, Reply, Serve, Server
from tests.cases.session import BOUNDARY_TOKENS, Session, assert_hit, assert_miss

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.engine.build import LoadedModel

TokensOf = Callable[[list[Message]], Sequence[int]]


@pytest.fixture
def tokens_of(loaded_model: LoadedModel) -> TokensOf:
    tokenizer = loaded_model.tokenizer
    builder = PromptBuilder(tokenizer, loaded_model.template, EchoIndex(tokenizer))
    return lambda messages: builder.build(Conversation(messages)).token_ids


ACCESS_LOG = "kvreg_service.api.generation.access_log"


@pytest.fixture(autouse=True)
def _log_requests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, ACCESS_LOG)


def _last_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Return the fields of the access log line of the last request."""
    *_, last = (record for record in caplog.records if record.name == ACCESS_LOG)
    return vars(last)


def _ask_at_two_times(serve: Serve, profile: Profile) -> tuple[Reply, Reply, Reply]:
    """A1, and A2 twice with another time of day in its last message."""
    session = Session(serve(profile), 17)
    first = session.begin()
    replies = [session.peek(f"It is 10:{minute:02} now. {RECALL}") for minute in (1, 2)]
    for reply in replies:
        assert session.canary in reply.text
    return first, *replies


@with_registry
def test_case_17_volatile_tail_is_prefilled_from_the_last_stable_boundary(
    serve: Serve, profile: Profile
) -> None:
    first, *replies = _ask_at_two_times(serve, profile)
    for reply in replies:
        assert reply.cached == first.prompt_tokens - BOUNDARY_TOKENS


@without_registry
def test_case_17_second_volatile_tail_misses_without_a_registry(
    serve: Serve, profile: Profile
) -> None:
    _, _, second = _ask_at_two_times(serve, profile)
    assert_miss(second)


def _prompt_at(minute: int) -> list[Message]:
    system = f"It is 10:{minute:02} now. You are a helpful assistant. " + "Be short. " * 40
    return [{"role": "system", "content": system}, {"role": "user", "content": "Hello!"}]


@some_profiles
def test_case_17_volatile_head_misses_and_the_log_has_the_diverging_position(
    serve: Serve, profile: Profile, tokens_of: TokensOf, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(profile)
    server.ask(_prompt_at(41))
    assert_miss(server.ask(_prompt_at(42)))
    before, after = tokens_of(_prompt_at(41)), tokens_of(_prompt_at(42))
    shared = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    line = _last_line(caplog)
    assert (line["reuse_path"], line["diverged_at"]) == ("full_reset", shared)
    assert 0 < shared < 20


SWITCHES = pytest.mark.parametrize("thinks", [True, False], ids=["on-to-off", "off-to-on"])


def _switch_thinking(server: Server, thinks: bool) -> tuple[Session, Reply, Reply]:
    session = Session(server, 30)
    first = session.begin(enable_thinking=thinks)
    with server.one_lane_left():
        server.ask_side()
        second = session.recall(enable_thinking=not thinks)
    return session, first, second


@every_profile
@SWITCHES
def test_case_30_switched_thinking_gives_correct_answers_in_the_new_mode(
    serve: Serve, profile: Profile, thinks: bool
) -> None:
    # `recall` checks that each answer has the canary of this session only.
    session, first, second = _switch_thinking(serve(profile), thinks)
    third = session.recall(enable_thinking=thinks)
    assert [bool(reply.reasoning) for reply in (first, second, third)] == [
        thinks, not thinks, thinks,
    ]  # fmt: skip


@with_registry
@SWITCHES
def test_case_30_switched_thinking_restores_the_turn_checkpoint(
    serve: Serve, profile: Profile, thinks: bool
) -> None:
    _, first, second = _switch_thinking(serve(profile), thinks)
    assert_hit(second, first)
    assert second.path == "restore_turn_checkpoint"


@pytest.mark.parametrize("effort", ["low", "high"])
def test_case_30_changed_reasoning_effort_that_the_template_ignores_hits(
    serve: Serve, effort: str
) -> None:
    session = Session(serve(), 30)
    first = session.begin(reasoning_effort="medium")
    assert_hit(session.recall(reasoning_effort=effort), first)


def _preserve_from_the_third_turn_on(serve: Serve, profile: Profile) -> tuple[Reply, Reply]:
    """Return the first turn and the third, which renders all history with think blocks."""
    session = Session(serve(profile), 30)
    first = session.begin()
    session.say("What is 7 plus 5?")
    return first, session.recall(preserve_thinking=True)


@with_registry
def test_case_30_history_rendered_differently_is_reused_up_to_the_difference(
    serve: Serve, profile: Profile
) -> None:
    first, third = _preserve_from_the_third_turn_on(serve, profile)
    # The first answer was generated after a think block, so that a kept frontier matches it.
    frontier = first.prompt_tokens + first.completion_tokens - 1
    checkpoint = first.prompt_tokens - BOUNDARY_TOKENS
    assert (third.cached, third.path) == (
        (frontier, "append_frontier")
        if profile.current_state == "keep"
        else (checkpoint, "restore_turn_checkpoint")
    )


@without_registry
def test_case_30_log_has_the_position_where_differently_rendered_history_diverges(
    serve: Serve, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    first, third = _preserve_from_the_third_turn_on(serve, profile)
    assert_miss(third)
    line = _last_line(caplog)
    assert (line["reuse_path"], line["diverged_at"]) == (
        "full_reset", first.prompt_tokens - BOUNDARY_TOKENS,
    )  # fmt: skip
