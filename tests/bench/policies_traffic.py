"""Synthetic traffic of agent clients as token streams: sessions, and requests between their turns.

Owns the parameters of each scenario and the order of its requests. Streams are determined by names
and seeds and do not depend on how the requests are served.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from random import Random

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Head

MAX_PROMPT_TOKENS = 40_000
"""A longer session ends, as with clients that compact their history."""

SEEDS = ("first", "second", "third")
"""One stream of each scenario is generated per seed."""

_IDENTITY = Identity(b"bench", "default")
_TAIL_TOKENS = 4
"""Tokens of a prompt after the boundary: the opened or closed think block."""
_PREFILL_TOKENS_PER_S = 1_100
_SECONDS_PER_ANSWER_TOKEN = 0.1
_PAUSE_LIMIT_S = 3_600.0
_SUBAGENT_HEAD_TOKENS = 6_000


class Kind(Enum):
    """Why a client sends a request."""

    FIRST = "first turn"
    TURN = "later turn"
    STEP = "tool step"
    TITLE = "title"
    PERMISSION = "permission review"
    SUMMARY = "summary"
    POSTFIX = "postfix side request"
    SUBAGENT = "sub-agent"
    SUBAGENT_STEP = "tool step of a sub-agent"
    ONE_SHOT = "one-off long prompt"

    @property
    def is_return(self) -> bool:
        """Whether it continues an earlier request of its session."""
        return self in (Kind.TURN, Kind.STEP, Kind.SUBAGENT_STEP)

    @property
    def is_side(self) -> bool:
        """Whether clients give it a low priority."""
        return not self.is_return and self not in (Kind.FIRST, Kind.SUBAGENT)


@dataclass(frozen=True)
class Scenario:
    """One parameter set. Shares are probabilities; ``clients`` is the number of distinct heads."""

    name: str
    what: str
    users: int
    clients: int
    think_s: float
    turns: float
    steps: float = 0.0
    titles: float = 1.0
    permissions: float = 0.0
    summaries: float = 0.0
    postfixes: float = 0.0
    subagents: float = 0.0
    abandoned: float = 0.1
    one_shots_per_hour: float = 0.0
    requests: int = 300


SCENARIOS = (
    Scenario(
        "chat",
        "three users who chat, with a title request for each turn",
        users=3, clients=2, think_s=60, turns=8, postfixes=0.1,
    ),
    Scenario(
        "coding",
        "two users with coding agents: tool loops, permission reviews, sub-agents, postfixes",
        users=2, clients=1, think_s=60, turns=6, steps=6, titles=0.3, permissions=0.2,
        summaries=0.3, postfixes=0.2, subagents=0.04,
    ),
    Scenario(
        "team",
        "six users with agents of three clients, more sessions than lanes and entries",
        users=6, clients=3, think_s=120, turns=8, steps=2, titles=0.5, permissions=0.1,
        summaries=0.2, postfixes=0.1, subagents=0.03,
    ),
    Scenario(
        "documents",
        "three agents, and once a minute a long prompt that is not continued",
        users=3, clients=2, think_s=60, turns=8, steps=2, titles=0.3, permissions=0.1,
        one_shots_per_hour=60,
    ),
    Scenario(
        "drop-outs",
        "five users who abandon most sessions after one or two turns",
        users=5, clients=2, think_s=60, turns=12, steps=1, titles=1.0, postfixes=0.1,
        abandoned=0.7,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class TrafficRequest:
    """One request of the stream, with the answer that the replay generates.

    ``after`` is the number of the request whose end the client waits for before it sends this one.
    """

    number: str
    arrival_s: float
    kind: Kind
    prompt: TokenLedger
    boundary: int
    answer: array[int]
    heads: tuple[Head, ...]
    after: str | None

    @property
    def frontier(self) -> int:
        """The position of the final state after the answer."""
        return len(self.prompt) + len(self.answer) - 1


def build_stream(scenario: Scenario, seed: str) -> list[TrafficRequest]:
    """Return the scenario's requests in the order of their arrival."""
    clients = [
        _Client.build(f"{scenario.name}/{seed}/client {index}", drops_thinking=index % 2 == 0)
        for index in range(scenario.clients)
    ]
    sources = [
        _User(scenario, seed, f"user {index}", clients[index % len(clients)]).requests_in_order()
        for index in range(scenario.users)
    ]
    if scenario.one_shots_per_hour:
        sources.append(_User(scenario, seed, "documents", clients[0]).send_documents())
    return list(islice(heapq.merge(*sources, key=_arrival_s), scenario.requests))


def _arrival_s(request: TrafficRequest) -> float:
    return request.arrival_s


@dataclass(frozen=True)
class _Client:
    """A client program: its head, and whether its template drops earlier think blocks."""

    head: array[int]
    subagent_head: array[int]
    drops_thinking: bool

    @classmethod
    def build(cls, seed: str, *, drops_thinking: bool) -> _Client:
        rng = Random(seed)
        head = _draw(rng, _between(rng, 1_000, 8_000))
        return cls(head, _draw(rng, _SUBAGENT_HEAD_TOKENS), drops_thinking)


class _User:
    """A user who sends one request after the other; ``requests_in_order`` yields them in order."""

    def __init__(self, scenario: Scenario, seed: str, name: str, client: _Client) -> None:
        self._scenario = scenario
        self._name = name
        self._client = client
        self._rng = Random(f"{scenario.name}/{seed}/{name}")
        self._now_s = self._rng.uniform(0, scenario.think_s)
        self._count = 0

    def requests_in_order(self) -> Iterator[TrafficRequest]:
        """Yield the requests of one session after the other."""
        while True:
            yield from self._session()
            self._think()

    def send_documents(self) -> Iterator[TrafficRequest]:
        """Yield long prompts that are not continued, at random times."""
        while True:
            self._now_s += self._rng.expovariate(self._scenario.one_shots_per_hour / 3_600)
            document = self._draw(8_000, 24_000)
            yield self._send(Kind.ONE_SHOT, document, None, heads=())

    def _session(self) -> Iterator[TrafficRequest]:
        scenario, client = self._scenario, self._client
        num_turns = 1 + self._geometric(scenario.turns - 1)
        if self._rng.random() < scenario.abandoned:
            num_turns = self._rng.randint(1, 2)
        heads = (Head(len(client.head)),)
        history = client.head + self._draw(200, 1_500)
        last: TrafficRequest | None = None
        for turn in range(num_turns):
            if turn:
                self._think()
            kind = Kind.TURN if turn else Kind.FIRST
            last = self._send(kind, history + self._draw(20, 1_000), last, heads=heads)
            yield last
            opened = last
            if self._rng.random() < scenario.titles:
                yield self._side(Kind.TITLE, 40, 400)
            for _ in range(self._geometric(scenario.steps)):
                if self._rng.random() < scenario.permissions:
                    yield self._side(Kind.PERMISSION, 200, 800)
                if self._rng.random() < scenario.subagents:
                    yield from self._subagent()
                last = self._step(Kind.STEP, opened, last)
                yield last
            history = self._next_history(opened, last)
            if len(history) > MAX_PROMPT_TOKENS:
                break
            if self._rng.random() < scenario.postfixes:
                prompt = history + self._draw(40, 120)
                yield self._send(Kind.POSTFIX, prompt, last, heads=heads)
        if self._rng.random() < scenario.summaries:
            yield self._side(Kind.SUMMARY, 200, 2_000)

    def _subagent(self) -> Iterator[TrafficRequest]:
        head = self._client.subagent_head
        prompt = head + self._draw(200, 800)
        last = opened = self._send(Kind.SUBAGENT, prompt, None, heads=(Head(len(head)),))
        yield last
        for _ in range(self._rng.randint(2, 6)):
            last = self._step(Kind.SUBAGENT_STEP, opened, last)
            yield last

    def _step(self, kind: Kind, opened: TrafficRequest, last: TrafficRequest) -> TrafficRequest:
        """Send a tool result after the whole history, including the last answer."""
        prompt = last.prompt.tokens + last.answer + self._draw(80, 2_000)
        boundary = opened.boundary if self._client.drops_thinking else None
        return self._send(kind, prompt, last, heads=last.heads, boundary=boundary)

    def _next_history(self, opened: TrafficRequest, last: TrafficRequest) -> array[int]:
        """Return the history of the next turn; after the boundary, what the template keeps."""
        whole = last.prompt.tokens + last.answer
        if not self._client.drops_thinking:
            return whole
        num_tokens = len(whole) - opened.boundary + self._between(50, 400)
        return opened.prompt.tokens[: opened.boundary] + _draw(self._rng, num_tokens)

    def _side(self, kind: Kind, low: int, high: int) -> TrafficRequest:
        return self._send(kind, self._draw(low, high), None, heads=())

    def _send(
        self,
        kind: Kind,
        prompt: array[int],
        after: TrafficRequest | None,
        *,
        heads: tuple[Head, ...],
        boundary: int | None = None,
    ) -> TrafficRequest:
        """Build a request, and advance time by its duration on a server without evictions."""
        self._count += 1
        known = after.frontier if after else 0
        request = TrafficRequest(
            number=f"{self._name}, request {self._count}",
            arrival_s=self._now_s,
            kind=kind,
            prompt=TokenLedger(_IDENTITY, prompt + _draw(self._rng, _TAIL_TOKENS)),
            boundary=len(prompt) if boundary is None else boundary,
            answer=_draw(self._rng, self._between(6, 24)),
            heads=heads,
            after=after.number if after else None,
        )
        self._now_s += max(0, len(prompt) - known) / _PREFILL_TOKENS_PER_S
        self._now_s += len(request.answer) * _SECONDS_PER_ANSWER_TOKEN + self._rng.uniform(0.1, 1.5)
        return request

    def _think(self) -> None:
        """Advance time by an exponential pause; one in seven has a heavy tail."""
        mean_s = self._scenario.think_s
        if self._rng.random() < 1 / 7:
            pause_s = mean_s * self._rng.paretovariate(1.1)
        else:
            pause_s = self._rng.expovariate(1 / mean_s)
        self._now_s += min(pause_s, _PAUSE_LIMIT_S)

    def _geometric(self, mean: float) -> int:
        if mean <= 0:
            return 0
        return int(math.log(1 - self._rng.random()) / math.log(mean / (mean + 1)))

    def _between(self, low: int, high: int) -> int:
        return _between(self._rng, low, high)

    def _draw(self, low: int, high: int) -> array[int]:
        return _draw(self._rng, self._between(low, high))


def _between(rng: Random, low: int, high: int) -> int:
    """Draw an integer from a log-uniform distribution."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _draw(rng: Random, num_tokens: int) -> array[int]:
    return array("i", array("H", rng.randbytes(2 * num_tokens)))
