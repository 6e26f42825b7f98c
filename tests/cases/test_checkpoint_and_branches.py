"""Cases 14, 15, 16, 22, 24 and 27: where a session resumes after repeats, branches and edits."""

from __future__ import annotations

from typing import Any

import pytest
from tests.canary import RECALL
from tests.cases.profiles import (
    WITH_REGISTRY,
    Profile,
    every_profile,
    whole_and_streamed,
    with_registry,
    with_registry_and_streams,
    without_registry,
)
from tests.cases.server import Message, Reply, Serve
from tests.cases.session import (
    BOUNDARY_TOKENS,
    Session,
    assert_fallback,
    assert_hit,
    assert_miss,
)


def _repeat_twice(serve: Serve, profile: Profile, **options: Any) -> tuple[Reply, Reply, Reply]:
    """A1 and two exact repeats of it, each after a side request."""
    server = serve(profile)
    session = Session(server, 14, **options)
    with server.one_lane_left():
        first = session.peek(session.opening)
        server.ask_side(1)
        second = session.peek(session.opening)
        server.ask_side(2)
        third = session.peek(session.opening)
    return first, second, third


@with_registry_and_streams
def test_case_14_repeated_turn_hits_after_side_requests(
    serve: Serve, profile: Profile, stream: bool
) -> None:
    first, *repeats = _repeat_twice(serve, profile, stream=stream)
    for repeat in repeats:
        assert_hit(repeat, first)


@without_registry
def test_case_14_repeated_turn_misses_after_side_requests_without_a_registry(
    serve: Serve, profile: Profile
) -> None:
    _, *repeats = _repeat_twice(serve, profile)
    for repeat in repeats:
        assert_miss(repeat)


@every_profile
def test_case_14_repeated_turn_gets_the_same_answer(serve: Serve, profile: Profile) -> None:
    first, second, third = _repeat_twice(serve, profile)
    assert first.text == second.text == third.text


def _branch(serve: Serve, profile: Profile) -> tuple[Reply, Reply, Reply, Reply]:
    """A1, A2, A2' (another last message), and A3, which continues A2."""
    session = Session(serve(profile), 15)
    first = session.begin()
    other = session.messages_with("What is 7 plus 5?")
    second = session.say("Tell me a short story about Nora in Lisbon.")
    branch = session.server.ask(other)
    third = session.recall()
    return first, second, branch, third


@with_registry
def test_case_15_branch_and_original_both_resume_after_their_shared_prefix(
    serve: Serve, profile: Profile
) -> None:
    first, second, branch, third = _branch(serve, profile)
    assert branch.cached == first.prompt_tokens - BOUNDARY_TOKENS
    assert_hit(third, second)


@without_registry
def test_case_15_branch_misses_without_a_registry(serve: Serve, profile: Profile) -> None:
    _, _, branch, _ = _branch(serve, profile)
    assert_miss(branch)


def _edit_second_of_five_turns(serve: Serve, profile: Profile) -> tuple[list[Reply], Reply]:
    """Five turns, then the fifth again with the second turn edited."""
    session = Session(serve(profile), 16)
    replies = [session.begin()]
    for text in ("My cat is named Mila.", "What is 7 plus 5?", "Thanks!"):
        replies.append(session.say(text))
    asked = "What is the name of my cat?"
    edited = [dict(message) for message in session.messages_with(asked)]
    edited[3]["content"] = "My cat is named Nora."
    replies.append(session.say(asked))
    return replies, session.server.ask(edited)


@every_profile
def test_case_16_answer_uses_the_edited_turn(serve: Serve, profile: Profile) -> None:
    replies, edited = _edit_second_of_five_turns(serve, profile)
    assert "Mila" in replies[-1].text
    assert "Nora" in edited.text
    assert "Mila" not in edited.text


@every_profile
def test_case_16_edit_before_every_kept_checkpoint_misses(serve: Serve, profile: Profile) -> None:
    _, edited = _edit_second_of_five_turns(serve, profile)
    assert_miss(edited)


@pytest.mark.parametrize("lanes", [1, 2])
def test_case_16_edit_falls_back_to_the_previous_turn_while_a_fork_is_kept(
    serve: Serve, lanes: int
) -> None:
    replies, edited = _edit_second_of_five_turns(serve, Profile(lanes, entries=4))
    assert_fallback(edited, earlier=replies[0], newer=replies[-1])


def _interrupt_short_session(serve: Serve, profile: Profile, num_notes: int) -> tuple[Reply, Reply]:
    server = serve(profile)
    session = Session(server, 22, num_notes=num_notes)
    with server.one_lane_left():
        first = session.begin()
        server.ask_side()
        return first, session.recall()


@pytest.mark.parametrize(
    ("profile", "num_notes"),
    [*((profile, 11) for profile in WITH_REGISTRY), (Profile(), 0), (Profile(2, 2, "drop"), 0)],
    ids=lambda value: str(value) if isinstance(value, Profile) else f"{40 + 7 * value}-tokens",
)
def test_case_22_short_session_is_kept(serve: Serve, profile: Profile, num_notes: int) -> None:
    first, second = _interrupt_short_session(serve, profile, num_notes)
    assert second.cached == first.prompt_tokens - BOUNDARY_TOKENS


@without_registry
def test_case_22_short_session_misses_without_a_registry(serve: Serve, profile: Profile) -> None:
    _, second = _interrupt_short_session(serve, profile, 11)
    assert_miss(second)


# The tail of a prompt determines the position at which an exact repeat resumes.
REPEATED: dict[str, tuple[list[Message], dict[str, Any]]] = {
    "user-tail": ([], {}),
    "thinking": ([], {"enable_thinking": True}),
    "assistant-tail": ([{"role": "assistant", "content": "Noted: your locker code is"}], {}),
    "continued": (
        [{"role": "assistant", "content": "Noted: your locker code is"}],
        {"continue_final_message": True},
    ),
}


@every_profile
@pytest.mark.parametrize("tail", REPEATED)
def test_case_24_exact_repeat_prefills_at_least_one_token_and_gets_the_same_answer(
    serve: Serve, profile: Profile, tail: str
) -> None:
    server = serve(profile)
    session = Session(server, 24)
    rest, options = REPEATED[tail]
    messages = [*session.messages_with(session.opening), *rest]
    first, *repeats = [server.ask(messages, **options) for _ in range(3)]
    for repeat in repeats:
        assert_hit(repeat, first)
        assert repeat.cached < repeat.prompt_tokens
        assert (repeat.reasoning, repeat.text) == (first.reasoning, first.text)


@every_profile
@whole_and_streamed
def test_case_24_repeat_limited_to_one_token_gets_a_prefix_of_the_answer(
    serve: Serve, profile: Profile, stream: bool
) -> None:
    server = serve(profile)
    session = Session(server, 24)
    messages = session.messages_with(session.opening)
    whole = server.ask(messages)
    for _ in range(3):
        one = server.ask(messages, max_tokens=1, stream=stream)
        assert one.text
        assert whole.text.startswith(one.text)
        assert (one.completion_tokens, one.finish_reason) == (1, "length")


def _drop_system_message_from_the_middle(
    serve: Serve, profile: Profile
) -> tuple[Reply, Reply, Reply]:
    session = Session(serve(profile), 27)
    first = session.begin()
    asked = {"role": "user", "content": RECALL}
    notice = {"role": "system", "content": " ".join(["Answer in one or two short sentences."] * 9)}
    with_notice = session.server.ask([*session.messages, notice, asked])
    return first, with_notice, session.server.ask([*session.messages, asked])


@every_profile
def test_case_27_system_message_in_the_middle_is_served(serve: Serve, profile: Profile) -> None:
    first, with_notice, _ = _drop_system_message_from_the_middle(serve, profile)
    assert_hit(with_notice, first)
    assert with_notice.text


@with_registry
def test_case_27_removing_the_system_message_falls_back_to_the_previous_turn(
    serve: Serve, profile: Profile
) -> None:
    first, with_notice, without = _drop_system_message_from_the_middle(serve, profile)
    assert_fallback(without, earlier=first, newer=with_notice)


@without_registry
def test_case_27_removing_the_system_message_misses_without_a_registry(
    serve: Serve, profile: Profile
) -> None:
    _, _, without = _drop_system_message_from_the_middle(serve, profile)
    assert_miss(without)
