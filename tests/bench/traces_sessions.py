"""Recorded sessions as a stream of requests, with synthetic tokens that match where real ones did.

Owns the file formats of recorded traffic and the times of the stream. The start and end of each
request depend only on the recording and the number of lanes, so that every policy serves the same
requests in the same order.
"""

from __future__ import annotations

import gzip
import heapq
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Head

MAX_SAMPLED_TOKENS = PAGE_TOKENS - 1
"""An answer is replayed with fewer tokens than a page; no pages are allocated for the rest."""

_PREFILL_TOKENS_PER_S = 8_000
_DECODE_TOKENS_PER_S = 100
_ARRIVALS_S = 600.0
_LONGEST_PAUSE_S = 3_600.0
_SHORTEST_PAUSE_S = 2.0
_SHORTEST_SESSION = 10

Runs = tuple[tuple[int, int], ...]
"""Runs of consecutive block ids: the first id and the count."""


@dataclass(frozen=True)
class RecordedRequest:
    """One request of a recording. ``blocks`` are the whole pages of its prompt, in order.

    ``scope`` is the namespace of the block ids: equal ids of one scope are equal tokens with an
    equal history. ``pause_s`` is the time between the client's previous answer and this request;
    ``start_s`` is the arrival of a client's first request.
    """

    client: int
    scope: str
    blocks: Runs
    answer_tokens: int
    head_tokens: tuple[int, ...] = ()
    pause_s: float = 0.0
    start_s: float = 0.0

    @property
    def num_pages(self) -> int:
        """Whole pages of the prompt."""
        return sum(count for _, count in self.blocks)


@dataclass(frozen=True)
class TraceRequest:
    """One request of the replayed stream.

    ``answer`` holds the tokens that the client's next prompt repeats, if it repeats any. The
    request occupies a lane from ``start_s`` to ``end_s``.
    """

    number: str
    start_s: float
    end_s: float
    prompt: TokenLedger
    answer: array[int]
    heads: tuple[Head, ...]


class TraceFileError(ValueError):
    """The file is not a recording, or has too few sessions."""


def read_stream(
    path: Path, *, users: int, lanes: int, seed: int, max_context_tokens: int, max_requests: int
) -> list[TraceRequest]:
    """Return the requests of ``users`` clients in the order in which ``lanes`` lanes take them.

    Sessions with a request above ``max_context_tokens`` are left out; of each other session the
    first ``max_requests`` requests are replayed.

    Raises:
        TraceFileError: The file cannot be read as a recording, or has too few sessions.
    """
    recorded = _read(path, users, seed, max_context_tokens, max_requests)
    return _with_tokens(_in_time(recorded, lanes))


def _read(
    path: Path, users: int, seed: int, max_context_tokens: int, max_requests: int
) -> list[RecordedRequest]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, ValueError) as err:
        raise TraceFileError(f"{path} cannot be read as JSON lines: {err}") from err
    if lines and isinstance(lines[0], dict):
        return _sessions(path, lines, users, seed, max_context_tokens, max_requests)
    if lines and isinstance(lines[0], list):
        return _service(lines, max_context_tokens, users * max_requests)
    raise TraceFileError(f"{path} holds neither sessions nor requests")


def _sessions(
    path: Path,
    lines: list[dict[str, Any]],
    users: int,
    seed: int,
    max_context_tokens: int,
    max_requests: int,
) -> list[RecordedRequest]:
    """Read one session per line. Its requests are lists:

    ``[t, agent, model, prompt, answer, tail, api, think, runs]``.
    """
    fitting = [
        session
        for session in lines
        if len(session["requests"]) >= _SHORTEST_SESSION
        and max(request[3] + request[4] for request in session["requests"]) <= max_context_tokens
    ]
    if len(fitting) < users:
        raise TraceFileError(
            f"users is {users}, and {path} has {len(fitting)} sessions of at least "
            f"{_SHORTEST_SESSION} requests within {max_context_tokens} tokens"
        )
    Random(seed).shuffle(fitting)
    arrivals = Random(seed)
    recorded = []
    for client, session in enumerate(fitting[:users]):
        start_s = arrivals.uniform(0.0, _ARRIVALS_S)
        heads = (session["tools"], session["tools"] + session["system"])
        for _, _, model, _, answer, _, _, think_s, runs in session["requests"][:max_requests]:
            recorded.append(
                RecordedRequest(
                    client=client,
                    scope=f"{session['id']}/{model}",
                    blocks=tuple((first, count) for first, count in runs),
                    answer_tokens=answer,
                    head_tokens=heads,
                    pause_s=min(think_s or _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S),
                    start_s=start_s,
                )
            )
    return recorded


def _service(
    lines: list[list[Any]], max_context_tokens: int, num_requests: int
) -> list[RecordedRequest]:
    """Read one request per line: ``[t, prompt, answer, runs]``, in blocks of 512 tokens."""
    pages = 512 // PAGE_TOKENS
    recorded = []
    for start_s, prompt, answer, runs in lines:
        if prompt + answer > max_context_tokens or len(recorded) == num_requests:
            continue
        blocks = tuple((first * pages, count * pages) for first, count in runs)
        one = RecordedRequest(len(recorded), "", blocks, answer, start_s=start_s)
        recorded.append(one)
    return recorded


def _in_time(
    recorded: Sequence[RecordedRequest], lanes: int
) -> list[tuple[float, float, RecordedRequest]]:
    """Serve the requests of each client one after the other, ``lanes`` of all at a time."""
    waiting: dict[int, list[RecordedRequest]] = {}
    for one in reversed(recorded):
        waiting.setdefault(one.client, []).append(one)
    arrivals = [(requests[-1].start_s, client) for client, requests in waiting.items()]
    heapq.heapify(arrivals)
    free_s = [0.0] * lanes
    timed = []
    while arrivals:
        arrival_s, client = heapq.heappop(arrivals)
        one = waiting[client].pop()
        start_s = max(arrival_s, heapq.heappop(free_s))
        end_s = start_s + one.num_pages * PAGE_TOKENS / _PREFILL_TOKENS_PER_S
        end_s += one.answer_tokens / _DECODE_TOKENS_PER_S
        heapq.heappush(free_s, end_s)
        timed.append((start_s, end_s, one))
        if waiting[client]:
            heapq.heappush(arrivals, (end_s + waiting[client][-1].pause_s, client))
    return timed


def _with_tokens(timed: list[tuple[float, float, RecordedRequest]]) -> list[TraceRequest]:
    tokens = _Tokens()
    echoes = _echoes([one for _, _, one in timed], tokens)
    stream = []
    for index, (start_s, end_s, one) in enumerate(timed):
        if not one.blocks:
            continue
        prompt = TokenLedger(
            Identity(one.scope.encode(), "bench"), tokens.of(one.scope, one.blocks)
        )
        stream.append(
            TraceRequest(
                number=str(index),
                start_s=start_s,
                end_s=end_s,
                prompt=prompt,
                answer=echoes[index],
                heads=tuple(Head(at) for at in one.head_tokens if 0 < at < len(prompt)),
            )
        )
    return stream


def _echoes(recorded: Sequence[RecordedRequest], tokens: _Tokens) -> list[array[int]]:
    """Return the answer to each request: what follows its prompt in the client's next prompt.

    It is empty if the next prompt does not begin with this one.
    """
    by_client: dict[tuple[int, str], list[int]] = {}
    for index, one in enumerate(recorded):
        by_client.setdefault((one.client, one.scope), []).append(index)
    answers = [tokens.fresh(MAX_SAMPLED_TOKENS) for _ in recorded]
    for indices in by_client.values():
        for index, following in pairwise(indices):
            one, after = recorded[index], recorded[following]
            echoed = _block_at(after.blocks, one.num_pages)
            if echoed is not None and _last_block(one.blocks) == _block_at(
                after.blocks, one.num_pages - 1
            ):
                answers[index] = tokens.of(one.scope, ((echoed, 1),))[:MAX_SAMPLED_TOKENS]
    return answers


def _block_at(runs: Runs, index: int) -> int | None:
    for first, count in runs:
        if index < count:
            return first + index
        index -= count
    return None


def _last_block(runs: Runs) -> int | None:
    return runs[-1][0] + runs[-1][1] - 1 if runs else None


class _Tokens:
    """Assigns each block of each scope a unique token, which fills its page."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int], int] = {}
        self._last = 0

    def of(self, scope: str, runs: Runs) -> array[int]:
        ids = [self._id(scope, block) for block in _blocks(runs)]
        tokens = array("i")
        tokens.frombytes(np.repeat(np.array(ids, dtype=np.int32), PAGE_TOKENS).tobytes())
        return tokens

    def fresh(self, count: int) -> array[int]:
        self._last += 1
        return array("i", [self._last]) * count

    def _id(self, scope: str, block: int) -> int:
        found = self._ids.get((scope, block))
        if found is None:
            self._last += 1
            found = self._ids[scope, block] = self._last
        return found


def _blocks(runs: Runs) -> Iterator[int]:
    for first, count in runs:
        yield from range(first, first + count)
