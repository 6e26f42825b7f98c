"""Cases 1, 2, 3, 6 and 8: a session and the side requests that interrupt it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from tests.cases.profiles import PROFILES, WITH_REGISTRY, Profile, every_profile, without_registry
from tests.cases.server import CONTEXT_TOKENS, Reply, Serve
from tests.cases.session import BOUNDARY_TOKENS, Session, assert_hit, assert_miss


@every_profile
def test_case_1_session_alone_hits_at_every_turn(serve: Serve, profile: Profile) -> None:
    session = Session(serve(profile), 1)
    first = session.begin()
    second = session.say("What is 7 plus 5?")
    third = session.recall()
    assert_miss(first)
    assert_hit(second, first)
    assert_hit(third, second)


@pytest.mark.parametrize("lanes", [1, 2])
def test_case_1_streamed_session_alone_hits_at_every_turn(serve: Serve, lanes: int) -> None:
    session = Session(serve(Profile(lanes)), 1, stream=True)
    first = session.begin()
    second = session.say("What is 7 plus 5?")
    third = session.recall()
    assert_miss(first)
    assert_hit(second, first)
    assert_hit(third, second)


def test_case_1_session_alone_misses_with_prefix_reuse_off(serve: Serve) -> None:
    session = Session(serve(Profile(entries=0), prefix_reuse=False), 1)
    for reply in (session.begin(), session.say("What is 7 plus 5?"), session.recall()):
        assert_miss(reply)


def _interrupted(serve: Serve, profile: Profile, max_tokens: int) -> tuple[int, int]:
    """Return the prompt tokens of A1 and the cached tokens of A2, with a side request in between.

    The side request and its ``max_tokens`` do not fit beside the session: reserving pages for them
    at the expense of kept sequences would evict the session.
    """
    server = serve(profile, kv_pages=profile.lanes * CONTEXT_TOKENS // 64)
    session = Session(server, 2, num_notes=110)
    first = session.begin()
    with server.one_lane_left():
        side = server.ask_side(max_tokens=max_tokens)
        second = session.recall()
    assert side.finish_reason == "stop"
    return first.prompt_tokens, second.cached


@pytest.mark.parametrize(
    ("profile", "max_tokens"),
    [
        *((profile, 32000) for profile in WITH_REGISTRY),
        (Profile(), 64),
        (Profile(), 4096),
    ],
    ids=str,
)
def test_case_2_session_hits_after_a_side_request_with_any_max_tokens(
    serve: Serve, profile: Profile, max_tokens: int
) -> None:
    prompt_tokens, cached = _interrupted(serve, profile, max_tokens)
    assert prompt_tokens > 800
    assert cached == prompt_tokens - BOUNDARY_TOKENS


@without_registry
def test_case_2_session_misses_without_a_registry(serve: Serve, profile: Profile) -> None:
    assert _interrupted(serve, profile, 64)[1] == 0


def _take_turns_between_side_requests(
    serve: Serve, profile: Profile, num_side: int, num_turns: int
) -> list[Reply]:
    server = serve(profile)
    session = Session(server, 3)
    with server.one_lane_left():
        replies = [session.begin()]
        for turn in range(1, num_turns):
            for number in range(num_side):
                server.ask_side(number, max_tokens=4)
            replies.append(session.say(f"What is {turn} plus 5?", max_tokens=12))
    return replies


@pytest.mark.parametrize(
    ("profile", "num_side"),
    [
        *((Profile(), num_side) for num_side in (1, 2, 3)),
        *((profile, 4) for profile in WITH_REGISTRY),
    ],
    ids=str,
)
def test_case_3_session_hits_at_every_turn_between_any_number_of_side_requests(
    serve: Serve, profile: Profile, num_side: int
) -> None:
    replies = _take_turns_between_side_requests(serve, profile, num_side, num_turns=10)
    for previous, reply in pairwise(replies):
        assert_hit(reply, previous)


@without_registry
def test_case_3_session_misses_at_every_turn_without_a_registry(
    serve: Serve, profile: Profile
) -> None:
    for reply in _take_turns_between_side_requests(serve, profile, 1, num_turns=3):
        assert_miss(reply)


def _two_sessions_in_turn(serve: Serve, profile: Profile) -> tuple[Reply, Reply]:
    server = serve(profile)
    a, b = Session(server, 61), Session(server, 62)
    first = a.begin()
    b.begin()
    return first, a.recall()


@pytest.mark.parametrize("profile", [p for p in PROFILES if p.lanes + p.entries >= 2], ids=str)
def test_case_6_first_session_hits_after_a_turn_of_a_second_one(
    serve: Serve, profile: Profile
) -> None:
    first, second = _two_sessions_in_turn(serve, profile)
    assert_hit(second, first)


@pytest.mark.parametrize("profile", [Profile(2, 0), Profile(2, 2, "drop")], ids=str)
def test_case_6_spare_lane_is_used_before_a_kept_session_is_displaced(
    serve: Serve, profile: Profile
) -> None:
    _, second = _two_sessions_in_turn(serve, profile)
    assert second.attach == "none"


def test_case_6_first_session_misses_after_a_turn_of_a_second_one_on_the_only_place(
    serve: Serve,
) -> None:
    _, second = _two_sessions_in_turn(serve, Profile(entries=0))
    assert_miss(second)


@pytest.mark.parametrize("profile", [Profile(1, 0), Profile(1, 1), Profile(1, 2, "drop")], ids=str)
def test_case_8_queued_session_starts_when_the_lane_is_free(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    a, b = Session(server, 81), Session(server, 82)
    with ThreadPoolExecutor(1) as other:
        with server.streaming(a.messages_with(a.opening)) as answer:
            begin_s = time.monotonic()
            reply = other.submit(b.begin)
            answer.read(20)
            assert not reply.done()
        waited_s = time.monotonic() - begin_s
        assert reply.result().queue_s <= waited_s + 1.0


@pytest.mark.parametrize("profile", [Profile(2, 0), Profile(2, 2, "drop")], ids=str)
def test_case_8_second_session_runs_on_the_second_lane(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    a, b = Session(server, 81), Session(server, 82)
    with server.streaming(a.messages_with(a.opening)) as answer:
        reply = b.begin()
        answer.read()
    assert b.canary in reply.text


def test_case_8_session_that_ran_first_is_kept_for_its_next_turn(serve: Serve) -> None:
    server = serve(Profile())
    a, b = Session(server, 81), Session(server, 82)
    with ThreadPoolExecutor(2) as both:
        first, _ = both.map(lambda session: session.begin(), (a, b))
    assert_hit(a.recall(), first)
