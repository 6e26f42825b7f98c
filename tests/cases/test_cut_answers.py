"""Cases 55 and 56: a client that disconnects during its answer or in the queue."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from tests.canary import RECALL
from tests.cases.profiles import Profile, every_profile, some_profiles, with_registry
from tests.cases.server import MODEL, Message, Reply, Serve, Server
from tests.cases.session import BOUNDARY_TOKENS, Session, assert_hit

NUM_STREAMED = 20


def _stream_and_disconnect(server: Server, messages: list[Message]) -> tuple[str, int]:
    """Read at least 20 tokens of an endless answer and disconnect; return text and count."""
    body = {"temperature": 0, **server.endless, "logprobs": True}
    text, num_tokens = "", 0
    with server.client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, extra_body=body
    ) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                if choice.logprobs:
                    num_tokens += len(choice.logprobs.content)
            if num_tokens >= NUM_STREAMED:
                break
    server.settle()
    return text, num_tokens


def _echo(server: Server, session: Session, text: str, **options: Any) -> Reply:
    echo = {"role": "assistant", "content": text}
    asked = {"role": "user", "content": RECALL}
    return server.ask([*session.messages_with(session.opening), echo, asked], **options)


@every_profile
def test_case_55_echo_of_a_cut_stream_hits(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    session = Session(server, 55)
    text, _ = _stream_and_disconnect(server, session.messages_with(session.opening))
    # The same prompt, for its token count.
    prompt = serve(profile).ask(session.messages_with(session.opening), max_tokens=1)
    reply = _echo(server, session, text)
    assert_hit(reply, prompt)
    assert session.canary in reply.text


@with_registry
def test_case_55_echo_of_a_cut_stream_hits_after_a_side_request(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    session = Session(server, 55)
    text, _ = _stream_and_disconnect(server, session.messages_with(session.opening))
    prompt = serve(profile).ask(session.messages_with(session.opening), max_tokens=1)
    with server.one_lane_left():
        server.ask_side()
        reply = _echo(server, session, text)
    assert_hit(reply, prompt)


@some_profiles
def test_case_55_state_has_no_tokens_beyond_the_streamed_ones(
    serve: Serve, profile: Profile
) -> None:
    """The next answer at a high temperature equals that after the same tokens without a cut."""
    cut, exact = serve(profile), serve(profile)
    session = Session(cut, 55)
    messages = session.messages_with(session.opening)
    text, num_tokens = _stream_and_disconnect(cut, messages)
    limited = exact.ask(messages, max_tokens=num_tokens, **exact.endless)
    assert limited.text == text
    drawn = {"temperature": 1.5, "seed": 11, "max_tokens": 96, **cut.endless}
    after_cut = _echo(cut, session, text, **drawn)
    after_exact = _echo(exact, session, text, **drawn)
    assert after_cut.cached == after_exact.cached == limited.prompt_tokens - BOUNDARY_TOKENS
    assert after_cut.text.encode() == after_exact.text.encode()


@pytest.mark.parametrize("num_others", [0, 1])
def test_case_55_continuation_of_a_cut_stream_equals_that_of_a_cold_server(
    serve: Serve, num_others: int
) -> None:
    """A continuation appends to the streamed text or falls back, and never skips a token."""
    server, cold = serve(), serve(Profile(entries=0), prefix_reuse=False)
    session = Session(server, 55)
    messages = session.messages_with(session.opening)
    text, _ = _stream_and_disconnect(server, messages)
    for number in range(num_others):
        server.ask_side(number)
    continued = [*messages, {"role": "assistant", "content": text}]
    options = {"continue_final_message": True, "max_tokens": 24, **server.endless}
    reply = server.ask(continued, **options)
    assert reply.cached > 0
    assert reply.text == cold.ask(continued, **options).text


@every_profile
def test_case_56_queued_requests_of_disconnected_clients_never_run(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    session = Session(server, 56)
    num_running, num_queued = profile.lanes, 5
    with ExitStack() as running:
        for number in range(num_running):
            stream = server.streaming(session.messages_with(f"What is {number} plus 5?"))
            running.enter_context(stream)
        with ExitStack() as waiting:
            for number in range(num_queued):
                stream = server.unread(session.messages_with(f"What is 5 plus {number}?"))
                waiting.enter_context(stream)
            server.wait_until("queued", num_queued)
        registry = server.wait_until("queued", 0)
        assert registry["running"] == num_running
        assert registry["totals"]["never_started"] == num_queued
    totals = server.settle()["totals"]
    assert sum(totals["requests_by_path"].values()) == num_running
    server.assert_clean()


def test_case_56_request_after_cancelled_queued_ones_is_served(serve: Serve) -> None:
    server = serve()
    session = Session(server, 56)
    with ExitStack() as running:
        running.enter_context(server.streaming(session.messages_with("Hello!")))
        with ExitStack() as waiting:
            for _ in range(5):
                waiting.enter_context(server.unread(session.messages_with("Thanks!")))
            server.wait_until("queued", 5)
        server.wait_until("queued", 0)
    assert session.canary in session.begin().text
