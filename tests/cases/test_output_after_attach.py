"""Cases 15, 46 and 48: output does not depend on detach, attach or other kept sequences.

The attention layers of the bundled model carry its facts, so that a greedy answer hides a wrong
recurrent state. These tests sample long answers at a high temperature with a fixed seed: each token
depends on the last bits of the logits, so that any difference in the state changes the text.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.canary import RECALL
from tests.cases.profiles import (
    PROFILES,
    WITH_REGISTRY,
    Profile,
    with_registry,
    with_registry_and_streams,
)
from tests.cases.server import Message, Reply, Serve, Server
from tests.cases.session import Session

from kvreg_service.model.cache import StateSlots


def _sampled(server: Server) -> dict[str, Any]:
    return {"temperature": 1.5, "seed": 11, "max_tokens": 160, **server.endless}


def _second_turn(
    serve: Serve, profile: Profile, *, is_interrupted: bool, stream: bool = False
) -> Reply:
    server = serve(profile)
    session = Session(server, 37, stream=stream)
    session.begin()
    if is_interrupted:
        _displace_from_every_lane(server)
    return session.peek(RECALL, **_sampled(server))


def _displace_from_every_lane(server: Server) -> None:
    # No other request runs afterwards, because the batch shape may change the last bit of a logit.
    with server.one_lane_left():
        for number in range(server.profile.lanes):
            server.ask_side(number)


@with_registry_and_streams
def test_answer_after_detach_and_attach_is_byte_identical(
    serve: Serve, profile: Profile, stream: bool
) -> None:
    attached = _second_turn(serve, profile, is_interrupted=True, stream=stream)
    alone = _second_turn(serve, profile, is_interrupted=False, stream=stream)
    assert (attached.attach, alone.attach) == ("registry", "none")
    assert attached.text.encode() == alone.text.encode()


def test_answer_from_a_zeroed_recurrent_state_differs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = _second_turn(serve, Profile(), is_interrupted=False)
    # From here on every copied state is zero.
    monkeypatch.setattr(StateSlots, "copy", lambda states, _, target: states.zero(target))
    attached = _second_turn(serve, Profile(), is_interrupted=True)
    assert attached.cached == alone.cached
    assert attached.text != alone.text


def _continued_answer(serve: Serve, profile: Profile, *, is_interrupted: bool) -> Reply:
    """Send the conversation again with its answer as the tail, which appends if possible."""
    server = serve(profile)
    session = Session(server, 38)
    session.begin()
    if is_interrupted:
        _displace_from_every_lane(server)
    # With drop, the answer is prefilled in one chunk instead of decoded, which may change last
    # bits; so compare greedy answers.
    options = _sampled(server) if profile.current_state == "keep" else {}
    return server.ask(session.messages, **options)


@with_registry
def test_answer_to_an_assistant_tail_after_attach_is_byte_identical(
    serve: Serve, profile: Profile
) -> None:
    attached = _continued_answer(serve, profile, is_interrupted=True)
    alone = _continued_answer(serve, profile, is_interrupted=False)
    paths = {"keep": "append_frontier", "drop": "restore_turn_checkpoint"}
    assert (attached.path, attached.attach) == (paths[profile.current_state], "registry")
    assert (alone.path, alone.attach) == ("append_frontier", "none")
    assert attached.text.encode() == alone.text.encode()


BRANCHES = ("Tell me a short story about Nora in Lisbon.", "Hello!")


def _continue_branch(serve: Serve, profile: Profile, continued: str, *others: str) -> Reply:
    """Send branches after the first turn, in the order of BRANCHES, and one more turn on one."""
    server = serve(profile)
    session = Session(server, 15)
    session.begin()
    history: list[Message] = []
    for text in BRANCHES:
        if text in (continued, *others):
            messages = session.messages_with(text)
            reply = server.ask(messages)
            if text == continued:
                history = [*messages, reply.echo]
    return server.ask([*history, {"role": "user", "content": RECALL}], **_sampled(server))


@pytest.mark.parametrize(
    ("profile", "continued", "other"),
    [
        *((profile, *BRANCHES) for profile in WITH_REGISTRY),
        (Profile(), *BRANCHES[::-1]),
        (Profile(2, 2, "drop"), *BRANCHES[::-1]),
    ],
    ids=str,
)
def test_case_15_branch_does_not_change_the_output_of_the_other(
    serve: Serve, profile: Profile, continued: str, other: str
) -> None:
    beside = _continue_branch(serve, profile, continued, other)
    alone = _continue_branch(serve, profile, continued)
    assert beside.cached == alone.cached > 0
    assert beside.text.encode() == alone.text.encode()


STYLED: list[Message] = [
    {"role": "system", "content": "你是一个乐于助人的助手。"},
    {"role": "user", "content": "我的柜子密码是4921。我的猫叫小花。"},
]


def _begin_session(serve: Serve, profile: Profile, *, is_first: bool) -> Reply:
    server = serve(profile)
    for number in range(0 if is_first else profile.lanes):
        styled = [*STYLED, {"role": "user", "content": f"我的门牌号是{number}。"}]
        assert server.ask(styled).text
    return Session(server, 46).begin(**_sampled(server))


@pytest.mark.parametrize(
    "profile",
    [Profile(1, 0), Profile(1, 1), Profile(1, 2, "drop"), Profile(2, 0), Profile(2, 2, "drop")],
    ids=str,
)
def test_case_46_new_session_on_a_used_lane_gets_the_same_answer_as_on_a_fresh_server(
    serve: Serve, profile: Profile
) -> None:
    used = _begin_session(serve, profile, is_first=False)
    fresh = _begin_session(serve, profile, is_first=True)
    assert used.cached == fresh.cached == 0
    assert used.text.encode() == fresh.text.encode()


CANARY = "4921"
REASONING = (
    f"The user asks what is my locker code. Earlier I was told: your locker code is {CANARY}."
)
THANKS: list[Message] = [
    {"role": "user", "content": "Thanks!"},
    {
        "role": "assistant",
        "content": "You are welcome! Is there anything else I can do for you?",
    },
]
ORIGINS = {True: "in-prompt", False: "continued"}
HELLO: list[Message] = [
    {"role": "system", "content": "Ticket 48. You are a helpful assistant. Keep answers short."},
    {"role": "user", "content": "Hello!"},
]


def _ask_after_reasoning(
    serve: Serve, profile: Profile, *, is_in_prompt: bool, keeps_reasoning: bool
) -> Reply:
    """A1 with the canary only in reasoning, a side request, and A2, which asks for the canary.

    The reasoning is either in the prompt of A1, as an answer echoed with it, or A1 continues it by
    two tokens.
    """
    server = serve(profile)
    options: dict[str, Any] = {"preserve_thinking": True} if keeps_reasoning else {}
    if is_in_prompt:
        echo = {"role": "assistant", "content": "Hello! How can I help you today?"}
        asked = {"role": "user", "content": "What is 7 plus 5?"}
        thinking = {**echo, "reasoning_content": REASONING}
        first = server.ask([*HELLO, thinking, asked], preserve_thinking=True)
        history = [*HELLO, thinking if keeps_reasoning else echo, asked, first.echo]
    else:
        opened = {"role": "assistant", "content": f"<think>\n{REASONING}\n</think>\n\n"}
        first = server.ask([*HELLO, opened], continue_final_message=True, max_tokens=2)
        echo = first.echo if not keeps_reasoning else {**first.echo, "reasoning_content": REASONING}
        history = [*HELLO, echo]
    assert CANARY not in first.text
    server.ask_side()
    # Longer than all of A1, because a shorter prompt never matches the whole ledger.
    history += [*THANKS, *THANKS, {"role": "user", "content": RECALL}]
    return server.ask(history, **options)


@pytest.mark.parametrize(
    ("profile", "is_in_prompt"),
    [*((p, True) for p in PROFILES), (Profile(1, 0), False), (Profile(2, 2, "drop"), False)],
    ids=lambda value: str(value) if isinstance(value, Profile) else ORIGINS[value],
)
def test_case_48_reasoning_that_is_not_echoed_does_not_leak(
    serve: Serve, profile: Profile, is_in_prompt: bool
) -> None:
    reply = _ask_after_reasoning(serve, profile, is_in_prompt=is_in_prompt, keeps_reasoning=False)
    assert CANARY not in reply.text


@pytest.mark.parametrize("is_in_prompt", ORIGINS, ids=ORIGINS.get)
def test_case_48_reasoning_that_is_echoed_and_preserved_is_recalled(
    serve: Serve, is_in_prompt: bool
) -> None:
    reply = _ask_after_reasoning(serve, Profile(), is_in_prompt=is_in_prompt, keeps_reasoning=True)
    assert CANARY in reply.text
