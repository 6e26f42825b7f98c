"""A server with too few pages for its sessions: which state is evicted when, why, at what cost.

Growing sessions and side requests alternate, then all sessions send a turn concurrently. The bench
is aborted if a request fails, if a final answer differs from that of a cold run, or if a page is
leaked.
"""

from __future__ import annotations

import json
import queue
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
from bench_run import BenchFailed, BenchRun
from kvreg_server import running_kvreg
from report import Section, Table

_LANES, _ENTRIES, _PAGES = 2, 4, 48
_SESSIONS = 5
_ONE_SHOTS = 50
_ANSWER_TOKENS = 80
_CHECKPOINT_SLACK_TOKENS = 64
_TIMEOUT_S = 120.0
_EVICTED = re.compile(r"evicted sequence (\d+) \((\d+) tokens, (\d+) bytes\): (\w+)")

_SIDE_TEXT = (
    "Write a title of 3 to 6 words for this conversation:\n\n"
    "User: The billing service is slow today. Can you find out why?"
)

_METHOD = f"""\
`kvreg serve` with C = {_LANES}, R = {_ENTRIES} and {_PAGES} pages. {_SESSIONS} sessions alternate;
each turn adds about 100 tokens and is followed by a side request of 50 tokens with `max_tokens`
32000. Finally all sessions send a turn concurrently. *Recomputed* are tokens of the session's
previous prompt that the server computes again. A victim is a session's newest state, an older one
(a fork), a kept head (an anchor), or the state of a side request. The last table is a session of
about 160 tokens with {_ONE_SHOTS} unrelated prompts of 210 tokens between its two turns, on
{_PAGES} pages."""


@dataclass(frozen=True)
class _Eviction:
    sequence_id: int
    tokens: int
    num_bytes: int
    reason: str


@dataclass(frozen=True)
class _Answer:
    request_id: str
    text: str
    prompt_tokens: int
    cached_tokens: int


@dataclass
class _Session:
    number: int
    messages: list[dict[str, str]] = field(default_factory=list)
    known_tokens: int = 0

    @property
    def name(self) -> str:
        return f"session {self.number}"

    def begin(self) -> None:
        """Set the system prompt."""
        notes = f"Ticket {self.number}. " + "The notes are updated once a week. " * 16
        self.messages = [{"role": "system", "content": notes}]

    def complete(self, server: _Server, text: str) -> tuple[_Answer, int]:
        """Run a turn; return the answer and the number of recomputed tokens."""
        self.messages.append({"role": "user", "content": text})
        answer = server.complete(self.messages, max_tokens=_ANSWER_TOKENS)
        self.messages.append({"role": "assistant", "content": answer.text})
        lost = self.known_tokens - answer.cached_tokens
        self.known_tokens = answer.prompt_tokens
        return answer, lost if lost > _CHECKPOINT_SLACK_TOKENS else 0

    def require_cold_answer(self, server: _Server, answer: _Answer) -> None:
        """Compare the last answer with that of a cold run of the same prompt.

        Raises:
            BenchFailed: the answers differ.
        """
        options = {"max_tokens": _ANSWER_TOKENS, "cache_prompt": False, "retain_prefix": False}
        control = server.complete(self.messages[:-1], **options)
        if control.cached_tokens or control.text != answer.text:
            raise BenchFailed(f"{self.name}: {answer.text!r}, and {control.text!r} in a cold run")


class _Server:
    """A server under memory pressure, and its log."""

    def __init__(self, url: str, log: queue.SimpleQueue[str]) -> None:
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_S)
        self._log = log
        self._finished: set[str] = set()
        self._evictions: list[_Eviction] = []

    def complete(self, messages: list[dict[str, str]], **options: Any) -> _Answer:
        body = {"model": "kvreg-reference", "messages": messages, "temperature": 0, **options}
        response = self._client.post("/v1/chat/completions", json=body)
        if not response.is_success:
            raise BenchFailed(f"a request failed under pressure: {response.text}")
        answer = response.json()
        usage = answer["usage"]
        return _Answer(
            request_id=answer["id"],
            text=answer["choices"][0]["message"]["content"],
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        )

    def registry(self) -> dict[str, Any]:
        return dict(self._client.get("/v1/registry").raise_for_status().json())

    def newest_sequence(self) -> int | None:
        """Return the most recently used sequence on a lane. Call while the server is idle."""
        lanes = [lane for lane in self.registry()["lanes"] if lane["sequence_id"] is not None]
        newest = min(lanes, key=lambda lane: lane["age_s"], default=None)
        return None if newest is None else int(newest["sequence_id"])

    def evictions_until(self, *answers: _Answer) -> list[_Eviction]:
        """Return the logged evictions since the last call up to the end of these answers."""
        while not {answer.request_id for answer in answers} <= self._finished:
            line = json.loads(self._log.get(timeout=_TIMEOUT_S))
            if found := _EVICTED.fullmatch(line["message"]):
                number, tokens, size, reason = found.groups()
                eviction = _Eviction(int(number), int(tokens), int(size), reason)
                self._evictions.append(eviction)
            elif "request_id" in line:
                self._finished.add(line["request_id"])
        evictions, self._evictions = self._evictions, []
        return evictions

    def require_no_leak(self) -> None:
        """Drop all kept sequences and check that every page is free.

        Raises:
            BenchFailed: a request failed, or a page is leaked.
        """
        registry = self.registry()
        totals = registry["totals"]
        if totals["failed"] or totals["cancelled"]:
            raise BenchFailed(f"running requests did not finish: {totals}")
        for place in (*registry["lanes"], *registry["entries"], *registry["anchors"]):
            if place["sequence_id"] is not None:
                path = f"/v1/registry/sequences/{place['sequence_id']}"
                self._client.delete(path).raise_for_status()
        (pool,) = self.registry()["pools"]
        if pool["free"] != pool["total"]:
            raise BenchFailed(f"pages are leaked: {pool}")


def run(bench: BenchRun) -> Section:
    """Run servers under memory pressure and report their evictions.

    Raises:
        BenchFailed: see the module docstring.
    """
    task = bench.progress.add_task("pressure", total=bench.rounds + 4)
    pressure_run = _PressureRun()
    log: queue.SimpleQueue[str] = queue.SimpleQueue()
    options = ("--lanes", str(_LANES), "--entries", str(_ENTRIES))
    with running_kvreg(*options, *_PAGE_OPTIONS, log_level="info", log=log) as url:
        server = _Server(url, log)
        for number in range(bench.rounds):
            pressure_run.play_round(server, number)
            bench.progress.advance(task)
        pressure_run.run_concurrent_turns(server)
        totals = server.registry()["totals"]
        server.require_no_leak()
    one_shots = []
    for entries in (1, _ENTRIES):
        for retain in (False, True):
            one_shots.append(_play_one_shots(entries, retain))
            bench.progress.advance(task)
    return Section(
        "pressure",
        _METHOD,
        [
            Table(
                "Evictions in order",
                ("at", "victim", "reason", "tokens", "bytes", "recomputed by the request"),
                pressure_run.rows,
            ),
            Table("Evictions by reason", ("reason", "count", "bytes"), pressure_run.reasons()),
            Table("A session around one-shot prompts", ("", "known", "cached"), one_shots),
        ],
        {"totals": totals, "recomputed_tokens": pressure_run.recomputed_tokens},
    )


_PAGE_OPTIONS = ("--kv-pages", str(_PAGES), "--max-context", str(_PAGES * 64))


class _PressureRun:
    """The sessions of a run, the table of evictions, and the owner of each kept sequence."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self.recomputed_tokens = 0
        self._sessions = [_Session(number + 1) for number in range(_SESSIONS)]
        for session in self._sessions:
            session.begin()
        self._names: dict[int, str] = {}
        self._seen: list[_Eviction] = []

    def play_round(self, server: _Server, number: int) -> None:
        for session in self._sessions:
            answer, recomputed = session.complete(
                server, f"Count from {number + 1} to {number + 30}."
            )
            at = f"round {number + 1}, {session.name}"
            self._record(server, at, session.name, [answer], recomputed)
            text = f"Side request {number}-{session.number}. {_SIDE_TEXT}"
            side = server.complete([{"role": "user", "content": text}], max_tokens=32000)
            self._record(server, f"{at}, side request", "side request", [side], 0)

    def run_concurrent_turns(self, server: _Server) -> None:
        question = "What is 7 plus 5?"
        with ThreadPoolExecutor(_SESSIONS) as pool:
            turns = list(
                pool.map(lambda session: session.complete(server, question), self._sessions)
            )
        answers = [answer for answer, _ in turns]
        self._record(server, "all at once", None, answers, sum(lost for _, lost in turns))
        for session, answer in zip(self._sessions, answers, strict=True):
            session.require_cold_answer(server, answer)

    def reasons(self) -> list[tuple[str, ...]]:
        counts = Counter(one.reason for one in self._seen)
        sizes = {reason: sum(e.num_bytes for e in self._seen if e.reason == reason)
                 for reason in counts}  # fmt: skip
        return [(reason, str(n), f"{sizes[reason]:,}") for reason, n in counts.most_common()]

    def _record(
        self, server: _Server, at: str, name: str | None, answers: list[_Answer], recomputed: int
    ) -> None:
        evictions = server.evictions_until(*answers)
        self._seen += evictions
        self.recomputed_tokens += recomputed
        for i, one in enumerate(evictions):
            victim = self._names.pop(one.sequence_id, "an older state or a head")
            cost = f"{recomputed:,}" if i == 0 else ""
            self.rows.append(
                (at, victim, one.reason, f"{one.tokens:,}", f"{one.num_bytes:,}", cost)
            )
        if not evictions and recomputed:
            self.rows.append((at, "none", "", "", "", f"{recomputed:,}"))
        newest = server.newest_sequence()
        if name is not None and newest is not None:
            for old in [
                key for key, known in self._names.items() if known == name != "side request"
            ]:
                self._names[old] = f"{name}, an older state"
            self._names[newest] = name


def _play_one_shots(entries: int, retain: bool) -> tuple[str, ...]:
    log: queue.SimpleQueue[str] = queue.SimpleQueue()
    with running_kvreg("--entries", str(entries), *_PAGE_OPTIONS, log=log) as url:
        server = _Server(url, log)
        session = _Session(9)
        session.begin()
        first, _ = session.complete(server, "Thanks!")
        for number in range(_ONE_SHOTS):
            text = f"Document {number}. " + "Every change needs a second pair of eyes. " * 18
            message = {"role": "user", "content": text}
            server.complete([message], max_tokens=4, retain_prefix=retain)
        second, _ = session.complete(server, "What is 7 plus 5?")
        session.require_cold_answer(server, second)
        server.require_no_leak()
    kept = "retained" if retain else "not retained"
    return f"R = {entries}, {kept}", str(first.prompt_tokens), str(second.cached_tokens)
