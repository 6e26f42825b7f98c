"""Cases 15, 46 and 48, and the bytes of an answer: no output shows what was kept elsewhere.

The attention layers of the bundled model carry its facts, so that a greedy answer hides a wrong
recurrent state. These tests draw long answers from a hot distribution with a fixed seed: each token
depends on the last bits of the logits, and a state that differs changes the text.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.profiles import (
    PROFILES,
    WITH_REGISTRY,
    Profile,
    with_registry,
    with_registry_and_streams,
)
from tests.cases.server import Message, Reply, Serve, Server
from tests.cases.session import ASKED, Session

from kvreg_service.model.cache import StateSlots


def _drawn(server: Server) -> dict[str, Any]:
    return {"temperature": 1.5, "seed": 11, "max_tokens": 160, **server.endless}


def _second_turn(
    serve: Serve, profile: Profile, *, is_interrupted: bool, stream: bool = False
) -> Reply:
    server = serve(profile)
    session = Session(server, 37, stream=stream)
    session.begin()
    if is_interrupted:
        _push_off_every_lane(server)
    return session.peek(ASKED, **_drawn(server))


def _push_off_every_lane(server: Server) -> None:
    # Nothing else runs afterwards: the shape of a decode batch may move the last bit of a logit.
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


def test_answer_from_a_lost_recurrent_state_is_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = _second_turn(serve, Profile(), is_interrupted=False)
    # From here on every state that is copied arrives as nothing.
    monkeypatch.setattr(StateSlots, "copy", lambda states, _, target: states.zero(target))
    attached = _second_turn(serve, Profile(), is_interrupted=True)
    assert attached.cached == alone.cached
    assert attached.text != alone.text


def _continued_answer(serve: Serve, profile: Profile, *, is_interrupted: bool) -> Reply:
    """The conversation with its own answer at the end, sent again: it appends where it can."""
    server = serve(profile)
    session = Session(server, 38)
    session.begin()
    if is_interrupted:
        _push_off_every_lane(server)
    # Replaying an answer computes it in one chunk instead of one by one, which may move last bits.
    options = _drawn(server) if profile.current_state == "keep" else {}
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
    """Branches behind the first turn, in the order of BRANCHES, and one more turn on one."""
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
    return server.ask([*history, {"role": "user", "content": ASKED}], **_drawn(server))


@pytest.mark.parametrize(
    ("profile", "continued", "other"),
    [
        *((profile, *BRANCHES) for profile in WITH_REGISTRY),
        (Profile(), *BRANCHES[::-1]),
        (Profile(2, 2, "drop"), *BRANCHES[::-1]),
    ],
    ids=str,
)
def test_case_15_branch_leaves_no_trace_in_the_other(
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


def _newcomer(serve: Serve, profile: Profile, *, is_first: bool) -> Reply:
    server = serve(profile)
    for number in range(0 if is_first else profile.lanes):
        styled = [*STYLED, {"role": "user", "content": f"我的门牌号是{number}。"}]
        assert server.ask(styled).text
    return Session(server, 46).begin(**_drawn(server))


@pytest.mark.parametrize(
    "profile",
    [Profile(1, 0), Profile(1, 1), Profile(1, 2, "drop"), Profile(2, 0), Profile(2, 2, "drop")],
    ids=str,
)
def test_case_46_newcomer_on_a_used_lane_is_answered_as_on_a_fresh_server(
    serve: Serve, profile: Profile
) -> None:
    used = _newcomer(serve, profile, is_first=False)
    fresh = _newcomer(serve, profile, is_first=True)
    assert used.cached == fresh.cached == 0
    assert used.text.encode() == fresh.text.encode()


CANARY = "4921"
THOUGHT = f"The user asks what is my locker code. Earlier I was told: your locker code is {CANARY}."
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


def _ask_after_a_thought(
    serve: Serve, profile: Profile, *, is_in_prompt: bool, keeps_thoughts: bool
) -> Reply:
    """A1 with the canary in its thinking only, a side request, and A2, which asks for it.

    The thought is either in the prompt of A1, as an answer that is echoed with its reasoning, or
    A1 goes on from it and says two tokens.
    """
    server = serve(profile)
    options: dict[str, Any] = {"preserve_thinking": True} if keeps_thoughts else {}
    if is_in_prompt:
        said = {"role": "assistant", "content": "Hello! How can I help you today?"}
        asked = {"role": "user", "content": "What is 7 plus 5?"}
        thinking = {**said, "reasoning_content": THOUGHT}
        first = server.ask([*HELLO, thinking, asked], preserve_thinking=True)
        history = [*HELLO, thinking if keeps_thoughts else said, asked, first.echo]
    else:
        opened = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n"}
        first = server.ask([*HELLO, opened], continue_final_message=True, max_tokens=2)
        echo = first.echo if not keeps_thoughts else {**first.echo, "reasoning_content": THOUGHT}
        history = [*HELLO, echo]
    assert CANARY not in first.text
    server.ask_side()
    # Longer than all of A1: a shorter prompt could never be taken for its continuation.
    history += [*THANKS, *THANKS, {"role": "user", "content": ASKED}]
    return server.ask(history, **options)


@pytest.mark.parametrize(
    ("profile", "is_in_prompt"),
    [*((p, True) for p in PROFILES), (Profile(1, 0), False), (Profile(2, 2, "drop"), False)],
    ids=lambda value: str(value) if isinstance(value, Profile) else ORIGINS[value],
)
def test_case_48_thought_that_is_not_echoed_is_not_known(
    serve: Serve, profile: Profile, is_in_prompt: bool
) -> None:
    reply = _ask_after_a_thought(serve, profile, is_in_prompt=is_in_prompt, keeps_thoughts=False)
    assert CANARY not in reply.text


@pytest.mark.parametrize("is_in_prompt", ORIGINS, ids=ORIGINS.get)
def test_case_48_thought_that_is_echoed_and_preserved_is_known(
    serve: Serve, is_in_prompt: bool
) -> None:
    reply = _ask_after_a_thought(serve, Profile(), is_in_prompt=is_in_prompt, keeps_thoughts=True)
    assert CANARY in reply.text
