"""Cases 50, 53 and 57: a full registry, exchanges, and hundreds of mixed requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from random import Random

import pytest
from tests.cases.clock import Clock
from tests.cases.profiles import Profile, some_profiles, whole_and_streamed, with_registry
from tests.cases.server import Reply, Serve, Server
from tests.cases.session import Session, assert_hit, assert_miss


def _abandon_sessions(server: Server) -> None:
    """Play 5 (C + R) sessions of three turns each, round robin, and abandon them."""
    count = 5 * (server.profile.lanes + server.profile.entries)
    sessions = [Session(server, 500 + number, num_notes=10) for number in range(count)]
    for text in (None, "What is 7 plus 5?", "Thanks!"):
        for session in sessions:
            session.say(text or session.opening, max_tokens=4)


@some_profiles
def test_case_50_fresh_session_hits_after_many_abandoned_ones(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    _abandon_sessions(server)
    fresh = Session(server, 50)
    first, second = fresh.begin(), fresh.say("What is 7 plus 5?")
    third = fresh.recall()
    assert_miss(first)
    assert_hit(second, first)
    assert_hit(third, second)


@with_registry
def test_case_50_fresh_session_survives_side_requests_after_a_minute_beside_abandoned_ones(
    serve: Serve, profile: Profile, clock: Clock
) -> None:
    server = serve(profile)
    _abandon_sessions(server)
    clock.advance(60.0)
    fresh = Session(server, 50)
    replies = []
    for text in (fresh.opening, "What is 7 plus 5?", "Thanks!"):
        with server.one_lane_left():
            replies.append(fresh.say(text))
            server.ask_side()
    for previous, reply in pairwise(replies):
        assert_hit(reply, previous)


def _return_to_a_full_registry(
    serve: Serve, profile: Profile, **options: bool
) -> tuple[Reply, Reply, Reply, Reply]:
    """A, others until the registry is full, B on the lane; then the next turns of A and B."""
    server = serve(profile, **options)
    a, *others, b = [Session(server, 530 + number) for number in range(profile.entries + 1)]
    with server.one_lane_left():
        first_a = a.begin()
        for other in others:
            other.begin()
        first_b = b.begin()
        assert len(server.kept()) == profile.entries
        return first_a, a.recall(), first_b, b.recall()


@with_registry
def test_case_53_returning_session_is_exchanged_with_the_one_on_the_lane(
    serve: Serve, profile: Profile
) -> None:
    first_a, second_a, first_b, second_b = _return_to_a_full_registry(serve, profile)
    assert_hit(second_a, first_a)
    assert_hit(second_b, first_b)
    assert (second_a.attach, second_b.attach) == ("registry", "registry")


@pytest.mark.parametrize("profile", [Profile(), Profile(2, 1, "drop")], ids=str)
def test_case_53_displaced_session_misses_without_exchange(serve: Serve, profile: Profile) -> None:
    first_a, second_a, _, second_b = _return_to_a_full_registry(serve, profile, exchange=False)
    assert_hit(second_a, first_a)
    assert_miss(second_b)


@pytest.mark.parametrize("profile", [Profile(1, 0), Profile(1, 2, "drop")], ids=str)
def test_case_53_entries_and_lane_hold_one_session_each(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    sessions = [Session(server, 540 + number) for number in range(profile.entries + 1)]
    firsts = [session.begin() for session in sessions]
    for session, first in zip(sessions, firsts, strict=True):
        assert_hit(session.recall(), first)


TEXTS = (
    "What is 7 plus 5?",
    "My cat is named Mila.",
    "The deploy is on Thursday.",
    "Thanks!",
    "Count from 3 to 12.",
)


class RandomClient:
    """A client that plays random operations on a few sessions of its own."""

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self._rng = Random(number)
        self._next_session = 1000 * number
        self._sessions: list[Session] = []

    def play(self, num_operations: int) -> None:
        operations = (
            self._turn, self._turn, self._turn, self._side_request, self._regeneration,
            self._edit, self._abort, self._unretained,
        )  # fmt: skip
        for _ in range(num_operations):
            self._rng.choice(operations)(self._session())

    def _session(self) -> Session:
        rng = self._rng
        if len(self._sessions) < 4 or rng.random() < 0.05:
            self._next_session += 1
            session = Session(self._server, self._next_session, num_notes=rng.randrange(12))
            self._sessions = [*self._sessions[-3:], session]
        return rng.choice(self._sessions)

    def _text(self) -> str:
        return self._rng.choice(TEXTS)

    def _turn(self, session: Session) -> None:
        # Truncate long conversations so that they fit into the context.
        if len(session.messages) > 16:
            del session.messages[1:]
        session.say(self._text(), max_tokens=self._rng.randint(1, 10))

    def _side_request(self, _: Session) -> None:
        self._server.ask_side(self._rng.randrange(1000), max_tokens=4)

    def _regeneration(self, session: Session) -> None:
        text = self._text()
        session.peek(text, max_tokens=4)
        session.say(text, max_tokens=4)

    def _edit(self, session: Session) -> None:
        users = [i for i, message in enumerate(session.messages) if message["role"] == "user"]
        if users:
            kept = session.messages[: self._rng.choice(users)]
            session.messages = kept
        session.say(f"{self._text()} Thanks!", max_tokens=4)

    def _abort(self, session: Session) -> None:
        with self._server.streaming(session.messages_with(self._text())) as answer:
            answer.read(self._rng.randint(1, 40))

    def _unretained(self, session: Session) -> None:
        session.peek(self._text(), max_tokens=4, retain_prefix=False)


@pytest.mark.parametrize(
    ("profile", "num_operations"),
    [(Profile(2, 2), 500), (Profile(1, 2, "drop"), 200)],
    ids=str,
)
def test_case_57_server_is_clean_after_mixed_operations(
    serve: Serve, profile: Profile, num_operations: int
) -> None:
    # So few pages that running requests must evict kept sequences.
    server = serve(profile, max_context=1024, kv_pages=16 * profile.lanes + 8)
    num_clients = profile.lanes + 1
    with ThreadPoolExecutor(num_clients) as pool:
        share = -(-num_operations // num_clients)
        list(pool.map(lambda n: RandomClient(server, n).play(share), range(1, num_clients + 1)))
    server.assert_clean()


@whole_and_streamed
@pytest.mark.parametrize("place", ["lane", "queue"])
def test_case_57_disconnect_frees_the_lane_or_the_place_in_the_queue(
    serve: Serve, stream: bool, place: str
) -> None:
    server = serve()
    session = Session(server, 57)
    first = session.begin()
    places = {"lane": ("running", 0), "queue": ("queued", 1)}
    gauge, num_streams = places[place]
    with ExitStack() as stack:
        for _ in range(num_streams):
            stack.enter_context(server.streaming(session.messages_with("Thanks!")))
        with server.unread(session.messages_with("What is 7 plus 5?"), stream=stream):
            server.wait_until(gauge, 1)
        server.wait_until(gauge, 0)
    assert_hit(session.recall(), first)


def test_case_57_session_hits_after_its_stream_is_cut(serve: Serve) -> None:
    server = serve()
    session = Session(server, 57)
    first = session.begin()
    with server.streaming(session.messages_with("What is 7 plus 5?")) as answer:
        answer.read(10)
    server.settle()
    assert_hit(session.recall(), first)
