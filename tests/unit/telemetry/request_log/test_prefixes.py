"""A reader finds the same common prefixes from the lines as the core from the tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.telemetry.request_log.invented_ledgers import InventedLedgers
from tests.unit.telemetry.request_log.log_reading import PAGE, Line, PrefixReader, read_lines
from tests.unit.telemetry.request_log.log_records import record, write_log

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.request_log.hashes import LogHashes
from kvreg_service.telemetry.request_log.prefixes import FileContents, MarkTable

# Around page boundaries, and far from them.
LENGTHS = st.sampled_from([0, 1, 2, 17, 62, 63, 64, 65, 100, 128, 130, 200])


@dataclass(frozen=True)
class Seed:
    """How a request derives from an earlier one: the tokens that it repeats and those it adds."""

    of: int
    repeated: int
    added: int
    words: int
    output: int
    boundary_back: int | None
    message_back: int
    kept_back: int
    head: int
    tenant: str
    starts_before: int


SEEDS = st.builds(
    Seed,
    of=st.integers(0, 8),
    repeated=st.one_of(st.just(1000), LENGTHS),
    added=LENGTHS,
    # Two words only, so that different ledgers agree for a while by chance.
    words=st.integers(0, 3),
    output=st.sampled_from([0, 1, 2, 30, 64, 70]),
    boundary_back=st.sampled_from([None, 1, 1, 5, 64]),
    message_back=st.sampled_from([0, 2, 70]),
    kept_back=st.sampled_from([0, 9, 60]),
    head=LENGTHS,
    tenant=st.sampled_from(["mine", "mine", "mine", "other"]),
    starts_before=st.sampled_from([0, 0, 0, 1, 3]),
)


def ledger_of(one: RequestRecord) -> list[int]:
    """The tokens that are kept when a request has finished."""
    return [*one.prompt.tokens, *one.output_ids[:-1]]


def requests_from(seeds: list[Seed]) -> list[RequestRecord]:
    requests: list[RequestRecord] = []
    for index, seed in enumerate(seeds):
        origin = ledger_of(requests[seed.of % index]) if index else []
        rng = Random(seed.words)
        tokens = origin[: seed.repeated] + [rng.randrange(2) for _ in range(seed.added)] or [0]
        boundary = None if seed.boundary_back is None else len(tokens) - seed.boundary_back
        round_boundary = len(tokens) - 3 * (seed.boundary_back or 0)
        message_boundary, kept_at = len(tokens) - seed.message_back, len(tokens) - seed.kept_back
        requests.append(
            record(
                tokens,
                tenant=seed.tenant,
                output_ids=tuple(rng.randrange(2) for _ in range(seed.output)),
                turn_boundary=boundary if boundary and boundary > 0 else None,
                round_boundary=round_boundary if round_boundary > 0 else None,
                message_boundary=message_boundary if message_boundary > 0 else None,
                kept_at=(kept_at,) if kept_at > 0 else (),
                heads=(seed.head,) if 0 < seed.head < len(tokens) else (),
                arrived_at_s=100.0 + index - seed.starts_before,
                ended_at_s=100.5 + index,
            )
        )
    return requests


def longest_by_tokens(one: RequestRecord, others: list[RequestRecord]) -> int:
    longest = 0
    for other in others:
        ledger = TokenLedger(other.prompt.identity, ledger_of(other))
        boundaries = {other.turn_boundary, other.round_boundary, other.message_boundary}
        kept = {*other.heads, *other.kept_at}
        for position in {*boundaries, other.frontier, *kept} - {None}:
            if longest < position < one.prompt_tokens and one.prompt.starts_with(ledger, position):
                longest = position
    return longest


Logged = Callable[..., list[Line]]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """Logs requests and returns the lines of all files, the oldest first."""

    def log(requests: list[RequestRecord], **file: object) -> list[Line]:
        path = tmp_path_factory.mktemp("log") / "requests.jsonl"
        write_log(path, requests, **({"max_files": 100} | file))
        files = sorted(path.parent.iterdir(), key=lambda one: -_age(one))
        return [line for one in files for line in read_lines(one)]

    return log


def _age(path: Path) -> int:
    suffix = path.name.rpartition(".")[2]
    return int(suffix) if suffix.isdigit() else 0


@settings(max_examples=80, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=2, max_size=9))
def test_the_longest_reuse_among_earlier_requests_is_that_of_the_ledgers(
    logged: Logged, seeds: list[Seed]
) -> None:
    requests = requests_from(seeds)
    reader = PrefixReader(logged(requests))
    found = [
        reader.longest_reuse(line, reader.requests[:index])
        for index, line in enumerate(reader.requests)
    ]
    assert found == [longest_by_tokens(one, requests[:index]) for index, one in enumerate(requests)]


@settings(max_examples=80, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=2, max_size=9))
def test_requests_that_overlapped_find_each_other_in_both_directions(
    logged: Logged, seeds: list[Seed]
) -> None:
    requests = requests_from(seeds)
    reader = PrefixReader(logged(requests))
    for index, one in enumerate(requests):
        overlapping = [
            at for at, other in enumerate(requests) if other.arrived_at_s <= one.ended_at_s
        ]
        overlapping.remove(index)
        found = reader.longest_reuse(
            reader.requests[index], [reader.requests[at] for at in overlapping]
        )
        assert found == longest_by_tokens(one, [requests[at] for at in overlapping])


@settings(max_examples=80, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=2, max_size=9))
def test_ledgers_can_be_invented_that_agree_wherever_a_state_was_kept(
    logged: Logged, seeds: list[Seed]
) -> None:
    requests = requests_from(seeds)
    reader = PrefixReader(logged(requests))
    ledgers = InventedLedgers(reader)
    invented = [
        _with_tokens(one, ledgers.tokens(line))
        for one, line in zip(requests, reader.requests, strict=True)
    ]
    assert [longest_by_tokens(one, invented[:index]) for index, one in enumerate(invented)] == [
        longest_by_tokens(one, requests[:index]) for index, one in enumerate(requests)
    ]


def _with_tokens(one: RequestRecord, tokens: list[int]) -> RequestRecord:
    """The same request with other tokens; the last one of the answer is arbitrary."""
    prompt = TokenLedger(one.prompt.identity, tokens[: one.prompt_tokens])
    output = (*tokens[one.prompt_tokens :], 0) if one.output_ids else ()
    assert len(output) == len(one.output_ids)
    return replace(one, prompt=prompt, output_ids=output)


@settings(max_examples=40, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=6, max_size=9), max_bytes=st.sampled_from([2500, 5000]))
def test_every_file_can_be_read_without_the_others(
    logged: Logged, seeds: list[Seed], max_bytes: int
) -> None:
    requests = requests_from(seeds)
    lines = logged(requests, max_bytes=max_bytes)
    starts = [index for index, line in enumerate(lines) if line["kind"] == "engine"]
    for start, end in pairwise([*starts, len(lines)]):
        reader = PrefixReader(lines[start:end])
        for index, line in enumerate(reader.requests):
            one = requests[line["number"] - 1]
            others = [requests[other["number"] - 1] for other in reader.requests[:index]]
            found = reader.longest_reuse(line, reader.requests[:index])
            assert found == longest_by_tokens(one, others)


@settings(max_examples=40, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=4, max_size=9), data=st.data())
def test_lost_lines_hide_reuse_and_never_invent_it(
    logged: Logged, seeds: list[Seed], data: st.DataObject
) -> None:
    requests = requests_from(seeds)
    lines = [line for line in logged(requests) if line["kind"] == "request"]
    left = data.draw(st.lists(st.sampled_from(lines), unique_by=lambda line: line["number"]))
    reader = PrefixReader(sorted(left, key=lambda line: line["number"]))
    for index, line in enumerate(reader.requests):
        others = [requests[other["number"] - 1] for other in reader.requests[:index]]
        found = reader.longest_reuse(line, reader.requests[:index])
        assert found <= longest_by_tokens(requests[line["number"] - 1], others)


def turns(count: int, num_words: int = 640) -> list[RequestRecord]:
    """A conversation that repeats all of its history, including answers."""
    rng = Random(1)
    requests: list[RequestRecord] = []
    tokens: list[int] = []
    for _ in range(count):
        tokens = tokens + [rng.randrange(1000) for _ in range(num_words)]
        answer = tuple(rng.randrange(1000) for _ in range(50))
        requests.append(record(tokens, output_ids=answer, turn_boundary=len(tokens) - 4))
        tokens = [*tokens, *answer]
    return requests


def test_a_turn_names_only_the_pages_that_are_new(logged: Logged) -> None:
    requests = turns(20)
    lines = [line for line in logged(requests) if line["kind"] == "request"]
    named = [
        len(one.prompt.tokens) // PAGE + 1 - line["num_known_pages"]
        for one, line in zip(requests, lines, strict=True)
    ]
    assert max(named) <= 640 // PAGE + 3


def test_a_turn_names_only_the_marks_that_are_new(logged: Logged) -> None:
    lines = [line for line in logged(turns(20)) if line["kind"] == "request"]
    assert max(len(line["marks"]) for line in lines) <= 6


def test_an_evicted_page_is_written_again() -> None:
    hashes = LogHashes("0123456789abcdef")
    table, contents = MarkTable(hashes), FileContents(hashes, max_pages=4)
    first, other = (
        table.examine(ledger, (), number=number, arrived_at_s=0.0, ended_at_s=0.0)
        for number, ledger in enumerate(
            TokenLedger(Identity(b"e", "t"), [word] * 4 * PAGE) for word in (1, 2)
        )
    )
    for one in (first, other):
        contents.add(one, contents.missing(one))
    assert len(contents.missing(first).pages) == 4


def test_marks_are_evicted_in_lru_order() -> None:
    table = MarkTable(LogHashes(), max_marks=2)
    identity = Identity(b"e", "t")

    def examine(tokens: list[int]) -> set[int]:
        ledger = TokenLedger(identity, tokens)
        seen = table.examine(ledger, [len(tokens)], number=1, arrived_at_s=1.0, ended_at_s=0.0)
        return {position for position, _ in seen.found}

    old, kept, new = [1] * 10, [2] * 10, [3] * 10
    for tokens in (old, kept, new):
        examine(tokens)
    assert (examine([*kept, 9]), examine([*old, 9])) == ({10}, set())


def test_ledgers_beyond_the_limit_are_not_held() -> None:
    table = MarkTable(LogHashes(), max_recent_tokens=1000)
    for number in range(20):
        ledger = TokenLedger(Identity(b"e", "t"), [number] * 300)
        table.examine(ledger, (), number=number, arrived_at_s=0.0, ended_at_s=1.0)
    assert table._num_recent_tokens <= 1000
