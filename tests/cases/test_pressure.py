"""Case 51 and page pressure: which sequences are evicted when running requests need pages.

Servers here have pages for one context and little more. Sizes are scaled down: sessions of 100 to
400 tokens instead of 2,000, and one of 650 instead of 60,000.
"""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from tests.cases.profiles import Profile
from tests.cases.server import Reply, Serve, Server
from tests.cases.session import Session, assert_hit, assert_miss

NUM_PAGES = 24
SCARCE = {"kv_pages": NUM_PAGES, "max_context": NUM_PAGES * 64}
# Not sorted by value.
NOTES = (34, 6, 48, 20)
LONG_NOTES = 85

one_lane = pytest.mark.parametrize("profile", [Profile(1, 4), Profile(1, 4, "drop")], ids=str)
crowded_profiles = pytest.mark.parametrize(
    "profile", [Profile(1, 4), Profile(1, 4, "drop"), Profile(2, 4)], ids=str
)


@dataclass(frozen=True)
class Eviction:
    """One eviction as logged."""

    sequence_id: int
    tokens: int
    num_bytes: int
    reason: str


@pytest.fixture(autouse=True)
def _log_evictions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvreg_service.engine")


def _logged(caplog: pytest.LogCaptureFixture) -> list[Eviction]:
    found = re.findall(r"evicted sequence (\d+) \((\d+) tokens, (\d+) bytes\): (\w+)", caplog.text)
    return [Eviction(int(n), int(tokens), int(size), why) for n, tokens, size, why in found]


def _fill(server: Server) -> list[Session]:
    """Play one turn of four sessions of different lengths."""
    sessions = [Session(server, 510 + i, num_notes=notes) for i, notes in enumerate(NOTES)]
    for session in sessions:
        session.begin()
    return sessions


def _apply_pressure(serve: Serve, profile: Profile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the registry snapshots before and after a prompt that needs evictions."""
    server = serve(profile, **SCARCE)
    _fill(server)
    # Detaches the last session into an entry, which shows its value, and leaves the lane empty.
    server.ask_side(retain_prefix=False)
    before = server.settle()
    Session(server, 51, num_notes=LONG_NOTES).begin(max_tokens=8)
    return before, server.settle()


@one_lane
def test_case_51_least_valuable_are_evicted_first_and_the_log_has_id_size_and_reason(
    serve: Serve, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    before, _ = _apply_pressure(serve, profile)
    evicted = _logged(caplog)
    by_value = sorted(before["entries"], key=lambda entry: entry["value"])
    assert 0 < len(evicted) < len(by_value)
    assert evicted == [
        Eviction(entry["sequence_id"], entry["tokens"], entry["bytes"], "pages_needed")
        for entry in by_value[: len(evicted)]
    ]


@one_lane
def test_case_51_no_more_are_evicted_than_the_prompt_needs(
    serve: Serve, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = _apply_pressure(serve, profile)
    pages = {entry["sequence_id"]: entry["pages"] for entry in before["entries"]}
    freed = [pages[one.sequence_id] for one in _logged(caplog)]
    (needed,) = [lane["pages"] for lane in after["lanes"] if lane["sequence_id"] is not None]
    free = before["pools"][0]["free"]
    assert free + sum(freed[:-1]) < needed <= free + sum(freed)


@one_lane
def test_case_51_totals_count_evictions_by_reason(
    serve: Serve, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    _, after = _apply_pressure(serve, profile)
    assert after["totals"]["evictions_by_reason"] == {"pages_needed": len(_logged(caplog))}


@crowded_profiles
def test_evicted_session_misses(serve: Serve, profile: Profile) -> None:
    server = serve(profile, **SCARCE)
    sessions = _fill(server)
    shortest = sessions[NOTES.index(min(NOTES))]
    Session(server, 51, num_notes=LONG_NOTES).begin(max_tokens=8)
    assert_miss(shortest.recall())


@crowded_profiles
@pytest.mark.parametrize("max_tokens", [64, 32000])
def test_side_request_evicts_nothing_at_any_max_tokens(
    serve: Serve, profile: Profile, max_tokens: int
) -> None:
    server = serve(profile, **SCARCE)
    _fill(server)
    server.settle()
    before = {place["sequence_id"] for place in server.occupied()}
    side = server.ask_side(max_tokens=max_tokens)
    assert side.finish_reason == "stop"
    after = server.settle()
    assert before < {place["sequence_id"] for place in server.occupied()}
    assert after["totals"]["evictions_by_reason"] == {}


@pytest.mark.parametrize("profile", [Profile(1, 2), Profile(2, 2), Profile(4, 2, "drop")], ids=str)
def test_running_requests_finish_by_evicting_sequences_at_rest(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile, **SCARCE)
    _fill(server)

    def grow(number: int) -> Reply:
        session = Session(server, 520 + number, num_notes=60)
        return session.begin(max_tokens=64, **server.endless)

    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(grow, range(4)))
    totals = server.settle()["totals"]
    assert [reply.completion_tokens for reply in replies] == [64] * 4
    assert (totals["failed"], totals["cancelled"]) == (0, 0)
    assert totals["evictions_by_reason"]["pages_needed"] > 0


@crowded_profiles
def test_growing_session_evicts_others_and_never_itself(
    serve: Serve, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(profile, **SCARCE)
    _fill(server)
    server.settle()
    others = {place["sequence_id"] for place in server.occupied()}
    session = Session(server, 52, num_notes=20)
    replies = [session.begin()]
    for turn in range(5):
        words = " ".join(["falcon river maple"] * 40)
        replies.append(session.say(f"Repeat these words: {turn} {words}.", max_tokens=12))
    for previous, reply in pairwise(replies):
        assert_hit(reply, previous)
    given_up = {one.sequence_id for one in _logged(caplog) if one.reason == "pages_needed"}
    assert given_up & others
