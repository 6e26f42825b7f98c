"""Recordings are replayed as recorded, and no policy exceeds the bound."""

from __future__ import annotations

import gzip
import json
from random import Random

import pytest
from policies_replay import COST
from traces_bound import most_hit_tokens
from traces_replay import TraceSetup, replay_trace
from traces_sessions import TraceFileError, read_stream

from kvreg_service.core.policies import POLICY_NAMES, build_policy


class _ArbitraryPolicy:
    """Random values from a seed, so that any eviction order can occur."""

    name = "arbitrary"
    evicts_for_detach = True

    def __init__(self, seed):
        self._random = Random(seed)

    def value(self, sequence, now_s):  # noqa: ARG002
        return self._random.random() + 1e-9

    def levels(self, kept):  # noqa: ARG002
        return {}


def _write(path, lines):
    path.write_bytes(gzip.compress("\n".join(json.dumps(line) for line in lines).encode()))
    return path


def _session(number, seed, num_requests=12):
    """Return turns that extend the prompt, and some that diverge before its end."""
    random = Random(seed)
    runs, last, requests = [[1, 4]], 4, []
    for _ in range(num_requests):
        if random.random() < 0.2:
            first, count = runs.pop()
            runs.append([first, max(1, count - 2)])
        fresh = random.randint(1, 4)
        runs = [*runs, [last + 1, fresh]]
        last += fresh
        pages = sum(count for _, count in runs)
        think_s = random.choice((0, 5.0, 40.0))
        runs_now = [list(run) for run in runs]
        requests.append([0.0, 0, 0, pages * 64 + 9, 30, "u", 1.0, think_s, runs_now])
    return {"id": number, "tools": 128, "system": 64, "requests": requests}


def _read(path, users=4, **options):
    options = {"lanes": 2, "seed": 1, "max_context_tokens": 64 * 256, "max_requests": 40} | options
    return read_stream(path, users=users, **options)


@pytest.fixture
def recording(tmp_path):
    return _write(tmp_path / "some.jsonl.gz", [_session(f"{n}", n) for n in range(6)])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("entries", [0, 1, 3])
def test_no_policy_exceeds_the_bound(recording, entries, seed):
    stream = _read(recording, seed=seed)
    setup = TraceSetup(2, entries, 256)
    bound = most_hit_tokens(stream, setup)
    for policy in (*(build_policy(name, COST) for name in POLICY_NAMES), _ArbitraryPolicy(seed)):
        assert replay_trace(stream, setup, policy) <= bound


def test_bound_equals_all_reusable_tokens_when_everything_fits(recording):
    stream = _read(recording, users=1)
    longest = [
        max((one.prompt.common_prefix(other.prompt) for other in stream[:index]), default=0)
        for index, one in enumerate(stream)
    ]
    bound = most_hit_tokens(stream, TraceSetup(2, 60, 4_000))
    assert sum(longest) <= bound <= sum(longest) + 63 * len(stream)


def test_bound_falls_with_slots_and_with_pages(recording):
    stream = _read(recording, users=6)
    much = most_hit_tokens(stream, TraceSetup(1, 8, 256, anchors=0))
    assert most_hit_tokens(stream, TraceSetup(1, 0, 256, anchors=0)) < much
    assert most_hit_tokens(stream, TraceSetup(1, 8, 40, anchors=0)) < much


def test_bound_does_not_keep_a_path_in_fractions_of_its_positions(tmp_path):
    """Six sessions of 20 pages take turns, and beside a prompt there is room for one or two."""
    requests = [[0.0, 0, 0, 64 * n, 20, "u", 1.0, 60.0, [[1, n]]] for n in range(20, 32)]
    sessions = [
        {"id": str(number), "tools": 0, "system": 0, "requests": requests} for number in range(6)
    ]
    stream = _read(_write(tmp_path / "six.jsonl.gz", sessions), users=6, max_context_tokens=2_048)
    everything = most_hit_tokens(stream, TraceSetup(1, 60, 4_000))
    assert most_hit_tokens(stream, TraceSetup(1, 60, 60)) < 0.5 * everything


def test_single_session_reuses_every_prompt_that_it_extends(tmp_path):
    requests = [[0.0, 0, 0, 64 * n + 5, 20, "t", 1.0, 2.0, [[1, n]]] for n in range(4, 24)]
    path = _write(
        tmp_path / "one.jsonl.gz", [{"id": "a", "tools": 0, "system": 0, "requests": requests}]
    )
    stream = _read(path, users=1)
    hit_tokens = replay_trace(stream, TraceSetup(1, 1, 64), build_policy("lru", COST))
    assert hit_tokens >= sum(len(one.prompt) for one in stream[:-1])


def test_every_pace_serves_the_same_requests_in_the_same_order(recording):
    stream = _read(recording)
    setup = TraceSetup(2, 2, 256)
    by_recency = {
        replay_trace(stream, setup, build_policy("lru", COST), pace) for pace in (0.1, 1, 10)
    }
    assert len(by_recency) == 1


def test_lanes_run_one_request_at_a_time(recording):
    stream = _read(recording, lanes=2)
    for one in stream:
        overlapping = [o for o in stream if o.start_s <= one.start_s < o.end_s]
        assert len(overlapping) <= 2


def test_service_recording_is_read_as_one_request_per_client(tmp_path):
    lines = [[float(n), 1024 + n, 10, [[0, 1], [n + 1, 1]]] for n in range(8)]
    stream = _read(_write(tmp_path / "service.jsonl.gz", lines), users=1, max_requests=5)
    assert [len(one.prompt) for one in stream] == [1024] * 5
    assert stream[0].prompt.common_prefix(stream[1].prompt) == 512


def test_blocks_of_different_models_are_not_shared(tmp_path):
    requests = [[0.0, 0, n % 2, 64 * 4, 5, "u", 1.0, 1.0, [[1, 4]]] for n in range(10)]
    path = _write(
        tmp_path / "two.jsonl.gz", [{"id": "a", "tools": 0, "system": 0, "requests": requests}]
    )
    first, second, third, *_ = _read(path, users=1)
    assert first.prompt.common_prefix(second.prompt) == 0
    assert first.prompt.common_prefix(third.prompt) == 256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.jsonl", b"no JSON", "cannot be read"),
        ("broken.jsonl.gz", b"no gzip", "cannot be read"),
        ("empty.jsonl", b"", "neither sessions nor requests"),
    ],
)
def test_file_that_is_not_a_recording_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceFileError, match=message):
        _read(tmp_path / name)


def test_more_users_than_sessions_are_refused(recording):
    with pytest.raises(TraceFileError, match=r"users is 9, and .* has 6 sessions"):
        _read(recording, users=9)
