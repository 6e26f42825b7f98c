"""Cases 11, 62, 80 and 81: what is retained, and what a request may reuse."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.canary import RECALL
from tests.cases.clock import Clock
from tests.cases.profiles import (
    Profile,
    every_profile,
    few_with_registry,
    with_registry,
    without_registry,
)
from tests.cases.server import Reply, Serve, Server
from tests.cases.session import BOUNDARY_TOKENS, Session, assert_hit, assert_miss

PAGE_TOKENS = 64
NUM_ONE_SHOTS = 50
# The pages of a running one-shot prompt, and those of the session with its next turn.
ONE_SHOT_PAGES = 5
SESSION_PAGES = 6


def _one_shots(server: Server, count: int, **options: bool) -> Iterable[Reply]:
    """Send prompts of four pages that share no prefix."""
    for number in range(count):
        one_shot = Session(server, 1100 + number, num_notes=30)
        yield one_shot.peek("Thanks!", max_tokens=4, **options)


def _play_one_shots(
    serve: Serve, profile: Profile, **options: bool
) -> tuple[Reply, Reply, dict[str, int]]:
    """Return A1, A2 after one-shot prompts, and the evictions, on a server without spare pages."""
    num_pages = SESSION_PAGES + ONE_SHOT_PAGES * profile.lanes
    server = serve(profile, kv_pages=num_pages, max_context=ONE_SHOT_PAGES * PAGE_TOKENS)
    session = Session(server, 11, num_notes=20)
    first = session.begin()
    for one_shot in _one_shots(server, NUM_ONE_SHOTS, **options):
        assert_miss(one_shot)
        assert one_shot.prompt_tokens > 3 * PAGE_TOKENS
    second = session.recall()
    return first, second, server.settle()["totals"]["evictions_by_reason"]


@few_with_registry
def test_case_11_session_hits_after_50_unretained_one_shots(serve: Serve, profile: Profile) -> None:
    """Scaled down: prompts of 210 tokens instead of 2,000, and fewer pages in proportion."""
    first, second, evictions = _play_one_shots(serve, profile, retain_prefix=False)
    assert_hit(second, first)
    assert evictions == {}


def test_case_11_session_misses_after_50_retained_one_shots(serve: Serve) -> None:
    _, second, evictions = _play_one_shots(serve, Profile())
    assert_miss(second)
    assert sum(evictions.values()) >= NUM_ONE_SHOTS


@without_registry
def test_case_11_unretained_one_shot_displaces_the_session_without_a_registry(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    session = Session(server, 11)
    with server.one_lane_left():
        session.begin()
        server.ask_side(retain_prefix=False)
        assert_miss(session.recall())


def _repeat_unretained(
    serve: Serve, profile: Profile
) -> tuple[Server, Session, Reply, list[Reply]]:
    server = serve(profile)
    session = Session(server, 80)
    first = session.begin()
    with server.one_lane_left():
        replies = [server.ask_side(retain_prefix=False) for _ in range(3)]
    return server, session, first, replies


@every_profile
def test_case_80_unretained_request_misses_each_time(serve: Serve, profile: Profile) -> None:
    _, _, _, replies = _repeat_unretained(serve, profile)
    for reply in replies:
        assert_miss(reply)
    assert len({reply.text for reply in replies}) == 1


@with_registry
def test_case_80_session_hits_after_unretained_requests(serve: Serve, profile: Profile) -> None:
    _, session, first, _ = _repeat_unretained(serve, profile)
    assert_hit(session.recall(), first)


@with_registry
def test_case_80_only_the_session_is_kept_after_unretained_requests(
    serve: Serve, profile: Profile
) -> None:
    server, _, first, _ = _repeat_unretained(serve, profile)
    server.settle()
    (kept,) = server.occupied()
    assert kept["checkpoint_position"] == first.prompt_tokens - BOUNDARY_TOKENS


@pytest.mark.parametrize("name", ["retain_prefix", "prompt_cache_read_only"])
def test_case_80_both_names_of_the_option_keep_nothing(serve: Serve, name: str) -> None:
    server = serve()
    server.ask_side(**{name: name == "prompt_cache_read_only"})
    server.settle()
    assert server.occupied() == []


@every_profile
def test_case_81_request_without_cache_prompt_misses_and_gets_the_same_answer(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    session = Session(server, 81)
    first = session.begin()
    hit = session.peek(RECALL)
    refused = session.peek(RECALL, cache_prompt=False)
    assert_hit(hit, first)
    assert_miss(refused)
    assert refused.text == hit.text


@every_profile
def test_case_81_request_after_one_without_cache_prompt_hits(
    serve: Serve, profile: Profile
) -> None:
    session = Session(serve(profile), 81)
    session.begin()
    refused = session.say("What is 7 plus 5?", cache_prompt=False)
    assert_miss(refused)
    assert_hit(session.recall(), refused)


def _abandon(server: Server) -> set[int]:
    """Play a turn of as many sessions as there are places; return the ids of their sequences."""
    for number in range(server.profile.lanes + server.profile.entries):
        Session(server, 620 + number, num_notes=20).begin()
    server.settle()
    return {place["sequence_id"] for place in server.occupied()}


@every_profile
def test_case_62_new_session_hits_beside_abandoned_ones(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    _abandon(server)
    fresh = Session(server, 62, num_notes=20)
    first = fresh.begin()
    assert_hit(fresh.recall(), first)


@every_profile
def test_case_62_new_sessions_evict_abandoned_ones(
    serve: Serve, profile: Profile, clock: Clock
) -> None:
    server = serve(profile)
    abandoned = _abandon(server)
    clock.advance(600.0)
    for number in range(profile.lanes + profile.entries):
        Session(server, 630 + number, num_notes=20).begin()
    server.settle()
    assert abandoned.isdisjoint(place["sequence_id"] for place in server.occupied())


@with_registry
def test_case_62_short_new_sessions_outlive_long_abandoned_ones(
    serve: Serve, profile: Profile, clock: Clock
) -> None:
    server = serve(profile)
    abandoned = _abandon(server)
    clock.advance(600.0)
    fresh = Session(server, 62, num_notes=4)
    with server.one_lane_left():
        first = fresh.begin()
        server.ask_side()
        assert_hit(fresh.recall(), first)
    assert abandoned - {place["sequence_id"] for place in server.occupied()}
