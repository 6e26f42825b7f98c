"""Cases 5, 7, 10, 21, 37 and 61: many sessions, each of which reuses its own state only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from random import Random
from threading import Lock
from typing import Any

import pytest
from tests.cases.profiles import Profile
from tests.cases.server import Serve, Server
from tests.cases.session import BOUNDARY_TOKENS, Session, assert_hit_at_boundary

LANES = (1, 2, 4)
# Two sessions need two places.
FOR_TWO = [
    Profile(1, 1), Profile(1, 1, "drop"), Profile(2, 0), Profile(2, 1), Profile(1, 4, "drop"),
    Profile(4, 2, "drop"), Profile(8, 0),
]  # fmt: skip
PAIR_OF_PLACES = [Profile(1, 1), Profile(1, 1, "drop"), Profile(2, 0)]
# About 100 tokens. Case 10 calls for 300, but 30 such turns exceed the positions of the bundled
# model.
NOTE = " ".join(["The notes are updated once a week. Backups are made every night."] * 6)
TALK = ("What is 7 plus 5?", "My cat is named Mila.", "Thanks!")


class FrozenClock:
    """Replaces the module `time` in the engine. No time passes."""

    @staticmethod
    def monotonic() -> float:
        return 1000.0


@pytest.fixture
def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evictions depend on sizes and returns only, not on the speed of the machine."""
    for module in ("engine", "loop.step_loop", "output.processor", "output.stream"):
        monkeypatch.setattr(f"kvreg_service.engine.{module}.time", FrozenClock)


@pytest.mark.parametrize("profile", FOR_TWO, ids=str)
def test_case_5_sessions_with_the_same_system_prompt_both_hit(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    a, b = Session(server, 51, num_notes=40), Session(server, 52)
    b.messages = a.messages[:]
    first_a = a.say(f"{NOTE} {NOTE} {a.opening}")
    first_b = b.begin()
    assert first_b.prompt_tokens < first_a.prompt_tokens - 128
    second_a, second_b = a.say("What is 7 plus 5?"), b.say("What is 7 plus 5?")
    assert_hit_at_boundary(second_a, first_a)
    assert_hit_at_boundary(second_b, first_b)
    assert_hit_at_boundary(a.recall(), second_a)
    assert_hit_at_boundary(b.recall(), second_b)


def _round_robin(server: Server, num_sessions: int, *, num_rounds: int) -> list[list[bool]]:
    """Play sessions of one size round robin; return which hit, for each round but the first."""
    sessions = [Session(server, 700 + number, num_notes=10) for number in range(num_sessions)]
    rounds = [[session.begin(max_tokens=12) for session in sessions]]
    for turn in range(1, num_rounds):
        rounds.append([session.say(TALK[turn % 3], max_tokens=12) for session in sessions])
    return [
        [
            reply.cached >= before.prompt_tokens - BOUNDARY_TOKENS
            for before, reply in zip(previous, current, strict=True)
        ]
        for previous, current in pairwise(rounds)
    ]


@pytest.mark.parametrize(
    "profile",
    [
        *(Profile(lanes, entries) for lanes in LANES for entries in (0, 1, 2, 4)),
        *(Profile(lanes, entries, "drop") for lanes in LANES for entries in (1, 2, 4)),
        Profile(8, 1),
    ],
    ids=str,
)
def test_case_7_as_many_round_robin_sessions_as_places_all_hit(
    serve: Serve, profile: Profile
) -> None:
    num_sessions = profile.lanes + profile.entries
    rounds = _round_robin(serve(profile), num_sessions, num_rounds=3)
    assert rounds == [[True] * num_sessions] * 2


@pytest.mark.parametrize(
    "profile",
    [
        *(Profile(lanes, entries) for lanes in LANES for entries in (1, 2, 4)),
        Profile(1, 1, "drop"),
        Profile(1, 4, "drop"),
        Profile(2, 2, "drop"),
        Profile(4, 2, "drop"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("frozen_clock")
def test_case_7_one_session_more_than_places_causes_at_most_two_misses_per_round(
    serve: Serve, profile: Profile
) -> None:
    """A session that misses displaces the one whose turn is next."""
    server = serve(profile)
    rounds = _round_robin(server, profile.lanes + profile.entries + 1, num_rounds=4)
    # In the first two rounds no session has a history of returns yet.
    assert max(hits.count(False) for hits in rounds[1:]) <= 2, rounds


@pytest.mark.parametrize("profile", [*PAIR_OF_PLACES, Profile(2, 2, "drop")], ids=str)
def test_case_10_two_alternating_sessions_hit_for_thirty_turns(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    a, b = Session(server, 101), Session(server, 102)
    previous = [a.begin(max_tokens=4), b.begin(max_tokens=4)]
    for _ in range(30):
        replies = [session.say(NOTE, max_tokens=4) for session in (a, b)]
        for reply, before in zip(replies, previous, strict=True):
            assert_hit_at_boundary(reply, before)
        previous = replies


def _occupancy(server: Server) -> dict[str, Any]:
    registry = server.settle()
    (pool,) = registry["pools"]
    return {
        "sessions": len(registry["sessions"]),
        "states": registry["state_slots"]["kept"],
        "pages": pool["referenced"],
    }


@pytest.mark.parametrize("profile", PAIR_OF_PLACES, ids=str)
def test_case_10_two_sessions_hold_only_the_pages_and_states_that_they_need(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    a, b = Session(server, 101), Session(server, 102)
    for _ in range(10):
        replies = [session.say(NOTE, max_tokens=4) for session in (a, b)]
        now = _occupancy(server)
        tokens = [reply.prompt_tokens + reply.completion_tokens for reply in replies]
        assert now["sessions"] == 2
        assert now["states"] <= server.registry()["state_slots"]["total"]
        # The end of an answer has a last page of its own, beside that of the turn after it.
        assert now["pages"] <= sum(-(-count // 64) + 1 for count in tokens)


@pytest.mark.parametrize("profile", PAIR_OF_PLACES, ids=str)
def test_case_21_two_places_hold_the_newest_turn_of_two_sessions(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    a, b = Session(server, 211), Session(server, 212)
    for turn in range(12):
        last = [session.say(TALK[turn % 3], max_tokens=12) for session in (a, b)]
    registry = server.settle()
    kept = {
        state["position"]
        for session in registry["sessions"]
        for state in session["states"]
        if state["kind"] == "turn"
    }
    assert kept >= {reply.prompt_tokens - BOUNDARY_TOKENS for reply in last}


class CanaryTurns:
    """Turns on a few sessions in random order: small talk and requests for the canary."""

    def __init__(self, server: Server, num_sessions: int, *, first_number: int) -> None:
        self._server = server
        self._rng = Random(first_number)
        numbers = range(first_number, first_number + num_sessions)
        self.sessions = [Session(server, number, num_notes=4) for number in numbers]
        for session in self.sessions:
            session.begin(max_tokens=24)
        self._locks = {id(session): Lock() for session in self.sessions}

    def play(self, num_turns: int, *, num_clients: int) -> None:
        order = [self.sessions[number % len(self.sessions)] for number in range(num_turns)]
        self._rng.shuffle(order)
        texts = [self._rng.choice((None, *TALK)) for _ in order]
        with ThreadPoolExecutor(num_clients) as pool:
            list(pool.map(self._turn, order, texts))

    def _turn(self, session: Session, text: str | None) -> None:
        # A client sends a turn after it has the answer to the previous one.
        with self._locks[id(session)]:
            # The bundled model recalls facts only up to about the lengths it was trained on.
            if len(session.messages) > 9:
                del session.messages[3:]
            if text is None:
                session.recall(max_tokens=24)
                return
            reply = session.say(text, max_tokens=12)
            others = self._server.canaries - {session.canary}
            assert not [canary for canary in others if canary in reply.text], reply


@pytest.mark.parametrize(
    ("profile", "num_turns"),
    [
        (Profile(2, 1, "drop"), 200),
        (Profile(4, 2), 60),
        (Profile(8, 0), 60),
    ],
    ids=str,
)
def test_case_37_concurrent_sessions_never_reveal_the_canary_of_another(
    serve: Serve, profile: Profile, num_turns: int
) -> None:
    server = serve(profile)
    turns = CanaryTurns(server, 2 * profile.lanes, first_number=370)
    turns.play(num_turns, num_clients=2 * profile.lanes)
    for session in turns.sessions:
        session.recall()


def test_case_61_server_is_clean_after_twenty_rounds_of_nine_sessions(serve: Serve) -> None:
    server = serve(Profile(2, 4))
    turns = CanaryTurns(server, 9, first_number=610)
    for _ in range(20):
        turns.play(9, num_clients=3)
    server.assert_clean()
