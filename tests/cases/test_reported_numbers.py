"""Cases 74 to 77: token counts, counters and the registry snapshot are present and add up."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cases.profiles import Profile, every_profile
from tests.cases.server import MODEL, Message, Reply, Serve, Server
from tests.cases.session import BOUNDARY_TOKENS, Session, assert_hit, assert_miss


def _events(server: Server, messages: list[Message], **options: Any) -> list[dict[str, Any]]:
    """Return the parsed SSE events of a stream."""
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
def test_case_74_only_the_last_chunk_has_usage(serve: Serve, options: dict[str, Any]) -> None:
    server = serve()
    *events, last = _events(server, Session(server, 74).messages_with("Hello!"), **options)
    assert last["usage"]
    assert [event for event in events if event.get("usage")] == []


def test_case_74_cached_tokens_are_zero_with_prefix_reuse_off(serve: Serve) -> None:
    server = serve(Profile(entries=0), prefix_reuse=False)
    messages = Session(server, 74).messages_with("Hello!")
    for _ in range(2):
        cached = _cached_tokens(_events(server, messages)[-1]["usage"])
        assert (type(cached), cached) == (int, 0)


@pytest.mark.parametrize("profile", [Profile(), Profile(2, 2, "drop")], ids=str)
def test_case_75_hit_prefills_only_the_answer_and_the_new_turn(
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


def _send_every_kind_of_request(server: Server) -> list[Reply]:
    session = Session(server, 76)
    return [
        session.begin(),
        server.ask_side(),
        session.recall(),
        server.ask_side(2, retain_prefix=False),
        session.say("Thanks!", stream=True),
        server.ask(session.messages),
    ]


@every_profile
def test_case_76_token_counters_are_the_sums_over_all_answers(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    replies = _send_every_kind_of_request(server)
    totals = server.settle()["totals"]
    assert totals["cached_tokens"] == sum(reply.cached for reply in replies)
    assert totals["computed_tokens"] == sum(reply.computed for reply in replies)
    assert totals["completion_tokens"] == sum(reply.completion_tokens for reply in replies)


@every_profile
def test_case_76_each_answer_is_counted_under_its_reported_reuse_path(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    reported = Counter(reply.path for reply in _send_every_kind_of_request(server))
    totals = server.settle()["totals"]
    assert +Counter(totals["requests_by_path"]) == reported
    assert (totals["finished"], totals["failed"], totals["cancelled"]) == (reported.total(), 0, 0)


@pytest.mark.parametrize("lanes", [1, 2])
def test_case_76_reuse_paths_and_never_started_add_up_to_all_requests(
    serve: Serve, lanes: int
) -> None:
    server = serve(Profile(lanes))
    session = Session(server, 76)
    num_finished, num_queued = 3, 4
    for _ in range(num_finished):
        session.say("Thanks!")
    assert server.post_raw(b"{}").status_code == 422
    with ExitStack() as stack:
        for _ in range(lanes):
            stack.enter_context(server.streaming(session.messages_with("Hello!")))
        for _ in range(num_queued):
            stack.enter_context(server.unread(session.messages_with("Thanks!")))
        server.wait_until("queued", num_queued)
    totals = server.settle()["totals"]
    assert totals["never_started"] == num_queued
    assert sum(totals["requests_by_path"].values()) == num_finished + lanes
    assert (totals["finished"], totals["cancelled"]) == (num_finished, lanes + num_queued)
    assert totals["failed"] == 0


def _fill_every_place(server: Server) -> tuple[list[Reply], dict[str, Any]]:
    """Play one turn of as many sessions as there are places."""
    num_places = server.profile.lanes + server.profile.entries
    # Lengths below and above a page boundary, independent of the number of lanes and entries.
    sessions = [Session(server, 770 + i, num_notes=3 + 4 * i) for i in range(num_places)]
    replies = [session.begin() for session in sessions]
    return replies, server.settle()


@every_profile
def test_case_77_every_place_shows_the_positions_of_its_session(
    serve: Serve, profile: Profile
) -> None:
    replies, registry = _fill_every_place(serve(profile))
    by_checkpoint = {reply.prompt_tokens - BOUNDARY_TOKENS: reply for reply in replies}
    places = [*registry["lanes"], *registry["entries"]]
    assert {place["checkpoint_position"] for place in places} == set(by_checkpoint)
    for place in places:
        reply = by_checkpoint[place["checkpoint_position"]]
        # The last token is sampled but never computed.
        frontier = reply.prompt_tokens + reply.completion_tokens - 1
        is_dropped = profile.current_state == "drop" and "entry_id" in place
        assert place["frontier"] == (None if is_dropped else frontier)
        assert place["tokens"] == (place["checkpoint_position"] if is_dropped else frontier)


@every_profile
def test_case_77_pools_add_up_to_the_places(serve: Serve, profile: Profile) -> None:
    _, registry = _fill_every_place(serve(profile))
    places = [*registry["lanes"], *registry["entries"]]
    for place in places:
        assert place["pages"] == -(-place["tokens"] // 64)
    (pool,) = registry["pools"]
    assert pool["referenced"] == sum(place["pages"] for place in places)
    assert pool["free"] + pool["referenced"] == pool["total"]
    num_states = 2 * profile.lanes + profile.entries * (2 if profile.current_state == "keep" else 1)
    assert registry["state_slots"] == {"total": num_states, "used": num_states}
    assert (registry["running"], registry["queued"]) == (0, 0)
