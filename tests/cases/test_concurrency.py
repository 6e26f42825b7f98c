"""Cases 52, 59 and 68, and busy lanes: requests that run or arrive concurrently."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from tests.canary import RECALL
from tests.cases.profiles import Profile
from tests.cases.server import MODEL, Message, Reply, Serve, Server
from tests.cases.session import Session, assert_hit_at_boundary

LANES_AND_ENTRIES = [
    Profile(1, 1), Profile(2, 0), Profile(3, 1, "drop"), Profile(4, 4), Profile(5, 2, "drop"),
    Profile(6, 0), Profile(7, 1), Profile(8, 2, "drop"),
]  # fmt: skip


@pytest.mark.parametrize("profile", LANES_AND_ENTRIES, ids=str)
def test_twice_as_many_concurrent_sessions_as_lanes_are_answered(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    sessions = [Session(server, 400 + number, num_notes=8) for number in range(2 * profile.lanes)]

    def play(session: Session) -> None:
        session.begin(max_tokens=24)
        session.recall(max_tokens=24)

    with ThreadPoolExecutor(len(sessions)) as clients:
        list(clients.map(play, sessions))


@dataclass(frozen=True)
class Choice:
    """The tokens of an answer, and the smallest gap in log-probability to the second best."""

    tokens: list[str]
    min_gap: float


def _choose(session: Session, text: str) -> Choice:
    answer = session.server.client.chat.completions.create(
        model=MODEL,
        messages=session.messages_with(text),
        max_tokens=32,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    session.messages = [
        *session.messages_with(text),
        {"role": "assistant", "content": choice.message.content},
    ]
    gaps = []
    for token in choice.logprobs.content:
        best, next_best = token.top_logprobs
        gaps.append(best.logprob - next_best.logprob)
    return Choice([token.token for token in choice.logprobs.content], min(gaps))


def _three_answers(server: Server) -> list[Choice]:
    session = Session(server, 440)
    return [_choose(session, text) for text in (session.opening, "What is 7 plus 5?", RECALL)]


@pytest.mark.parametrize(
    "profile", [Profile(2, 1), Profile(4, 0), Profile(4, 2, "drop"), Profile(8, 1)], ids=str
)
def test_session_beside_busy_lanes_gets_the_same_tokens_as_alone(
    serve: Serve, profile: Profile
) -> None:
    alone = _three_answers(serve(Profile()))
    # The shape of a batch may change the last bit of a logit, which matters only in a tie.
    assert min(choice.min_gap for choice in alone) > 0.01, "the answers must have no near-ties"
    server = serve(profile)
    with server.one_lane_left():
        beside_others = _three_answers(server)
    assert [choice.tokens for choice in beside_others] == [choice.tokens for choice in alone]


@pytest.mark.parametrize("profile", [Profile(2, 1), Profile(2, 2, "drop"), Profile(4, 1)], ids=str)
def test_spare_lane_is_used_before_a_kept_session_is_displaced(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    sessions = [Session(server, 450 + number) for number in range(profile.lanes)]
    firsts = []
    for session in sessions:
        firsts.append(session.begin())
        assert server.kept() == []
    for session, first in zip(sessions, firsts, strict=True):
        second = session.recall()
        assert_hit_at_boundary(second, first)
        assert second.attach == "none"


@pytest.mark.parametrize("profile", [Profile(2, 1), Profile(4, 2, "drop")], ids=str)
def test_spare_lane_between_busy_ones_is_used_before_a_kept_session_is_displaced(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    kept, fresh = Session(server, 460), Session(server, 461)
    first = kept.begin()
    with ExitStack() as streams:
        for number in range(profile.lanes - 2):
            messages = Session(server, 462 + number).messages_with("Hello!")
            streams.enter_context(server.streaming(messages))
        fresh.begin()
        assert server.kept() == []
        second = kept.recall()
    assert_hit_at_boundary(second, first)
    assert second.attach == "none"


SUM = "What is 7 plus 5?"
PAIRS = pytest.mark.parametrize(
    "texts", [(RECALL, RECALL), (RECALL, SUM)], ids=["same-prompt", "same-history"]
)
# Both requests may be continued, so that two places are needed.
AT_ONCE = pytest.mark.parametrize(
    "profile",
    [Profile(1, 1), Profile(1, 2, "drop"), Profile(2, 0), Profile(2, 1, "drop"), Profile(4, 2)],
    ids=str,
)


def _two_next_turns(
    serve: Serve, profile: Profile, texts: tuple[str, str], num_clients: int
) -> tuple[Session, list[Reply]]:
    session = Session(serve(profile), 470)
    session.begin()
    with ThreadPoolExecutor(num_clients) as clients:
        return session, list(clients.map(session.peek, texts))


@AT_ONCE
@PAIRS
def test_concurrent_requests_of_one_session_get_the_same_answers_as_sequential_ones(
    serve: Serve, profile: Profile, texts: tuple[str, str]
) -> None:
    _, at_once = _two_next_turns(serve, profile, texts, num_clients=2)
    _, in_turn = _two_next_turns(serve, profile, texts, num_clients=1)
    assert [reply.text for reply in at_once] == [reply.text for reply in in_turn]


@AT_ONCE
@PAIRS
def test_both_branches_of_concurrent_requests_of_one_session_hit(
    serve: Serve, profile: Profile, texts: tuple[str, str]
) -> None:
    session, replies = _two_next_turns(serve, profile, texts, num_clients=2)
    begun = session.messages
    # The branch that ran first is in the entry. Continuing the other one first would put a fork of
    # it there: lane and entry have room for two branches, not for a fork as well.
    served = sorted(zip(texts, replies, strict=True), key=lambda one: one[1].queue_s)
    for text, reply in served:
        session.messages = [*begun, {"role": "user", "content": text}, reply.echo]
        assert_hit_at_boundary(session.recall(), reply)


WHILE_IT_RUNS = pytest.mark.parametrize(
    "profile", [Profile(1, 1), Profile(2, 0), Profile(2, 1, "drop"), Profile(4, 2)], ids=str
)


def _next_turn(serve: Serve, profile: Profile, *, while_first_runs: bool) -> tuple[Session, Reply]:
    """A1, of which the client has read 20 characters, and A2, which continues from those."""
    session = Session(serve(profile), 480)
    server = session.server
    with ThreadPoolExecutor(1) as other, ExitStack() as first:
        answer = first.enter_context(server.streaming(session.messages_with(session.opening)))
        echo = {"role": "assistant", "content": answer.read(20)[:20]}
        session.messages = [*session.messages_with(session.opening), echo]
        if not while_first_runs:
            first.close()
            server.settle()
        reply = other.submit(session.recall)
        if while_first_runs and profile.lanes == 1:
            server.wait_until("queued", 1)
        elif while_first_runs:
            reply.result()
            answer.read()
        first.close()
        return session, reply.result()


@WHILE_IT_RUNS
def test_turn_concurrent_with_the_previous_one_gets_the_same_answer_as_after_it(
    serve: Serve, profile: Profile
) -> None:
    _, beside = _next_turn(serve, profile, while_first_runs=True)
    _, after = _next_turn(serve, profile, while_first_runs=False)
    assert beside.text == after.text


@WHILE_IT_RUNS
def test_session_hits_after_a_turn_concurrent_with_the_previous_one(
    serve: Serve, profile: Profile
) -> None:
    session, reply = _next_turn(serve, profile, while_first_runs=True)
    session.server.settle()
    assert_hit_at_boundary(session.recall(), reply)


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no-exchange"])
@pytest.mark.parametrize("profile", [Profile(1, 1), Profile(1, 1, "drop"), Profile(2, 1)], ids=str)
def test_case_52_more_concurrent_returning_sessions_than_places_are_answered(
    serve: Serve, profile: Profile, exchange: bool
) -> None:
    server = serve(profile, exchange=exchange)
    sessions = [Session(server, 520 + number) for number in range(profile.lanes + 1)]
    for session in sessions:
        session.begin()
    for _ in range(3):
        with ThreadPoolExecutor(len(sessions)) as clients:
            list(clients.map(lambda session: session.recall(), sessions))


@pytest.mark.parametrize(
    ("profile", "num_requests"),
    [
        (Profile(1, 0), 2),
        (Profile(1, 1, "drop"), 4),
        (Profile(2, 1), 2),
        (Profile(2, 2, "drop"), 8),
        (Profile(4, 2), 4),
        (Profile(8, 0), 8),
    ],
    ids=str,
)
def test_case_59_concurrent_identical_cold_prompts_get_equal_answers_and_are_kept(
    serve: Serve, profile: Profile, num_requests: int
) -> None:
    server = serve(profile)
    session = Session(server, 590)
    with ThreadPoolExecutor(num_requests) as clients:
        replies = list(clients.map(session.peek, [session.opening] * num_requests))
    assert len({reply.text for reply in replies}) == 1
    session.messages = [*session.messages_with(session.opening), replies[0].echo]
    assert_hit_at_boundary(session.recall(), replies[0])


def _long(number: int) -> list[Message]:
    """Return a prompt of about 900 tokens, which takes two prefill chunks."""
    text = f"Request {number}. " + "Repeat these words: falcon river maple. " * 90
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("profile", [Profile(1, 1), Profile(2, 0), Profile(4, 1)], ids=str)
def test_case_68_short_request_does_not_wait_for_long_ones_queued_after_it(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    session = Session(server, 680, num_notes=2)
    hello: list[Message] = [{"role": "user", "content": "Hello!"}]
    with ThreadPoolExecutor(6) as clients, ExitStack() as busy:
        for _ in range(profile.lanes - 1):
            busy.enter_context(server.streaming(hello, retain_prefix=False))
        with server.streaming(hello, retain_prefix=False):
            ahead = []
            for number in range(5):
                ahead.append(clients.submit(server.ask, _long(number), max_tokens=1))
                server.wait_until("queued", len(ahead))
            short = clients.submit(session.begin)
            server.wait_until("queued", 6)
            for number in range(5, 10):
                # None of these ends, so that a request that waits for one of them waits for ever.
                busy.enter_context(server.unread(_long(number), retain_prefix=False))
                server.wait_until("queued", 2 + number)
        assert session.canary in short.result().text
        assert [one.result().completion_tokens for one in ahead] == [1] * 5
