"""Lines contain no text, and errors of the file do not affect the engine."""

from __future__ import annotations

import logging
import shutil
import threading
from datetime import datetime
from pathlib import Path

import pytest
from tests.unit.telemetry.request_log.log_reading import PAGE, Line, PrefixReader, read_lines
from tests.unit.telemetry.request_log.log_records import FACTS, TIMEOUT_S, Counts, record, write_log

from kvreg_service.core import events
from kvreg_service.core.ids import LaneId, RequestId, SessionId, StateId
from kvreg_service.core.labels import EvictionReason, ReusePath, StateKind
from kvreg_service.telemetry.request_log import prefixes, request_log
from kvreg_service.telemetry.request_log.request_log import LogFile, RequestLog

SALT = "a salt of some length"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "requests.jsonl"


def lines_of(path: Path, *what: object, salt: str | None = None) -> list[Line]:
    """The lines of these events and requests, without those about the engine."""
    log = RequestLog(LogFile(path, salt=salt), FACTS)
    for one in what:
        if isinstance(one, events.Event):
            log.registry_changed(one)
        else:
            log.request_ended(one)
    assert log.close(TIMEOUT_S)
    return [line for line in read_lines(path) if line["kind"] != "engine"]


class Blocked:
    """Blocks the thread of the log at the prefix search, until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._released = threading.Event(), threading.Event()
        examine = prefixes.MarkTable.examine

        def wait_and_examine(*args: object, **more: object) -> object:
            self.reached.set()
            assert self._released.wait(TIMEOUT_S)
            return examine(*args, **more)

        monkeypatch.setattr(prefixes.MarkTable, "examine", wait_and_examine)

    def release(self) -> None:
        self._released.set()


# Content of the lines.


def test_an_engine_begins_and_ends_its_log(path: Path) -> None:
    write_log(path, [record([1])])
    events_seen = [line.get("event") for line in read_lines(path)]
    assert events_seen == ["start", None, "end"]


def test_the_last_line_counts_the_lines(path: Path) -> None:
    write_log(path, [record([1]), record([2])])
    lines = read_lines(path)
    assert (lines[-1]["num_lines"], lines[-1]["num_lost_lines"]) == (len(lines) - 1, 0)


def test_an_engine_is_in_its_log_before_any_traffic(path: Path) -> None:
    counts = Counts()
    log = RequestLog(LogFile(path), FACTS, counts)
    counts.wait_written()
    assert [line["event"] for line in read_lines(path)] == ["start"]
    log.close(TIMEOUT_S)


def test_every_file_begins_with_the_engine(path: Path) -> None:
    write_log(path, [record([n]) for n in range(9)], max_bytes=3000, max_files=20)
    first = [read_lines(one)[0] for one in path.parent.iterdir()]
    assert sorted(line["event"] for line in first) == ["continue"] * (len(first) - 1) + ["start"]


def test_lines_are_numbered_in_the_order_of_events(path: Path) -> None:
    lines = lines_of(path, record([1]), events.PinEnded(SessionId(1)), record([2]))
    assert [line["number"] for line in lines] == [1, 2, 3]


def test_times_are_utc_to_the_millisecond(path: Path) -> None:
    line = lines_of(path, record([1]))[0]
    assert line["time"].endswith("Z")
    assert datetime.fromisoformat(line["time"]).utcoffset().total_seconds() == 0


def test_durations_add_up_from_the_arrival(path: Path) -> None:
    line = lines_of(path, record([1]))[0]
    parts = [line[f"{part}_s"] for part in ("queue", "attach", "prefill", "decode")]
    assert (parts, line["total_s"]) == ([0.25, 0.25, 0.5, 1.0], 2.0)


def test_a_request_that_ended_in_the_queue_has_no_lane_and_no_times_but_the_whole(
    path: Path,
) -> None:
    never = {"admission": None, "output_ids": (), "admitted_at_s": None, "prepared_at_s": None}
    line = lines_of(path, record([1], **never, first_token_at_s=None))[0]
    told = {name for name, value in line.items() if value is not None}
    assert told.isdisjoint({"lane", "reuse_path", "queue_s", "ttft_s", "frontier"})
    assert line["total_s"] == 2.0


def test_pages_end_where_the_computation_ended(path: Path) -> None:
    # The last token was sampled but never computed.
    line = lines_of(path, record([1] * 60, output_ids=(2,) * 5))[0]
    assert (line["frontier"], len(PrefixReader([line]).pages(line))) == (64, 1)
    line = lines_of(path, record([1] * 60, output_ids=(2,) * 4))[-1]
    assert (line["frontier"], len(PrefixReader([line]).pages(line))) == (63, 0)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            events.Detached(SessionId(1), LaneId(2), 3, 4000),
            {"event": "detach", "session_id": 1, "lane": 2, "num_states": 3, "bytes": 4000},
        ),
        (
            events.Attached(
                RequestId("r"), SessionId(1), LaneId(2), ReusePath.RESTORE_BRANCH_POINT
            ),
            {
                "event": "attach",
                "request_id": "r",
                "session_id": 1,
                "lane": 2,
                "reuse_path": "restore_branch_point",
            },
        ),
        (
            events.StateKept(
                StateId(5), SessionId(1), RequestId("r"), StateKind.HEAD, 130, is_marked=True
            ),
            {
                "event": "keep",
                "request_id": "r",
                "session_id": 1,
                "state_id": 5,
                "state_kind": "head",
                "tokens": 130,
                "is_marked": True,
            },
        ),
        (
            events.Evicted(
                StateId(5), SessionId(1), StateKind.TURN, EvictionReason.EXPIRED, "x", 9, 4000
            ),
            {
                "event": "evict",
                "reason": "expired",
                "session_id": 1,
                "state_id": 5,
                "state_kind": "turn",
                "tokens": 9,
                "bytes": 4000,
            },
        ),
        (events.PinEnded(SessionId(1)), {"event": "pin_end", "session_id": 1}),
    ],
    ids=lambda one: one["event"] if isinstance(one, dict) else "",
)
def test_an_event_has_its_fields(path: Path, event: events.Event, told: dict[str, object]) -> None:
    line = lines_of(path, event)[0]
    every_line = {"schema_version", "kind", "time", "engine", "number", "tenant"}
    assert {name: value for name, value in line.items() if name not in every_line} == told


def test_an_eviction_names_the_tenant_as_a_request_does(path: Path) -> None:
    evicted = events.Evicted(
        StateId(5), SessionId(1), StateKind.TURN, EvictionReason.QUOTA, "default", 9, 4000
    )
    request, eviction = lines_of(path, record([1]), evicted)
    assert eviction["tenant"] == request["tenant"]


@pytest.mark.parametrize(
    "where",
    [
        {"heads": (70,)},
        {"turn_boundary": 70},
        {"round_boundary": 70},
        {"message_boundary": 70},
        {"kept_at": (70,)},
    ],
    ids=lambda where: next(iter(where)),
)
def test_each_position_at_which_a_state_may_be_kept_has_a_mark(
    path: Path, where: dict[str, object]
) -> None:
    line = lines_of(path, record([1] * 100, **where))[0]
    assert 70 in dict(line["marks"])


# Hashes.


def test_neither_names_nor_tokens_of_clients_are_in_the_file(path: Path) -> None:
    secret_tokens = list(range(31_000, 31_200))
    lines_of(path, record(secret_tokens, tenant="acme-corp", session=b"begins-so"))
    text = path.read_text()
    assert not [word for word in ("acme", "begins", b"begins-so".hex(), "31001") if word in text]


def test_ledger_digests_are_not_in_the_file(path: Path) -> None:
    # They depend on public data only, so a guessed text could be checked against them.
    one = record([1] * PAGE)
    line = lines_of(path, one)[0]
    page = PrefixReader([line]).pages(line)[0]
    assert page not in one.prompt.digest_before(PAGE).hex()


def names_in(line: Line) -> tuple[object, ...]:
    return line["tenant"], line["session"], line["pages"], tuple(map(tuple, line["marks"]))


def test_names_last_across_engines_with_a_salt(tmp_path: Path) -> None:
    first, second = (
        names_in(lines_of(tmp_path / name, record([1] * 100), salt=SALT)[0]) for name in "ab"
    )
    assert first == second


@pytest.mark.parametrize("salts", [(None, None), (SALT, SALT + "!")])
def test_names_differ_between_salts(tmp_path: Path, salts: tuple[str | None, ...]) -> None:
    first, second = (
        names_in(lines_of(tmp_path / str(index), record([1] * 100), salt=salt)[0])
        for index, salt in enumerate(salts)
    )
    assert [a == b for a, b in zip(first, second, strict=True)] == [False] * 4


def test_two_tenants_share_no_name(path: Path) -> None:
    lines = lines_of(path, record([1] * 100), record([1] * 100, tenant="other"))
    first, second = map(names_in, lines)
    assert [a == b for a, b in zip(first, second, strict=True)] == [False] * 4


# Errors.


def test_lines_beyond_the_queue_are_dropped_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MAX_QUEUED", 3)
    blocked, counts = Blocked(monkeypatch), Counts()
    log = RequestLog(LogFile(path), FACTS, counts)
    log.request_ended(record([1]))
    assert blocked.reached.wait(TIMEOUT_S)
    for n in range(5):
        log.request_ended(record([n]))
    blocked.release()
    assert log.close(TIMEOUT_S)
    assert counts.lost == ["queue_full"] * 2
    numbers = [line["number"] for line in read_lines(path) if line["kind"] == "request"]
    assert numbers == [1, 2, 3, 4]


def test_long_ledgers_that_wait_are_bounded_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MAX_QUEUED_TOKENS", 1000)
    blocked, counts = Blocked(monkeypatch), Counts()
    log = RequestLog(LogFile(path), FACTS, counts)
    log.request_ended(record([1]))
    assert blocked.reached.wait(TIMEOUT_S)
    for _ in range(4):
        log.request_ended(record([1] * 600))
    blocked.release()
    assert log.close(TIMEOUT_S)
    assert counts.lost == ["queue_full"] * 2


def test_ledgers_that_were_written_make_room_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MAX_QUEUED_TOKENS", 1000)
    counts = Counts()
    log = RequestLog(LogFile(path), FACTS, counts)
    counts.wait_written()
    for _ in range(20):
        log.request_ended(record([1] * 600))
        counts.wait_written()
    log.close(TIMEOUT_S)
    assert counts.lost == []


class Troubled:
    """A log whose directory is a file at first."""

    def __init__(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._in_the_way = path.parent
        self._in_the_way.write_text("in the way")
        told = threading.Event()
        caplog.handler.addFilter(lambda _: told.set() or True)
        self.counts = Counts()
        self.log = RequestLog(LogFile(path), FACTS, self.counts, retry_s=0.001)
        self.log.request_ended(record([1]))
        assert told.wait(TIMEOUT_S)

    def clear(self) -> None:
        self._in_the_way.unlink()
        self.counts.wait_written(2)
        assert self.log.close(TIMEOUT_S)


def test_lines_wait_until_the_file_can_be_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    troubled = Troubled(path, caplog)
    troubled.clear()
    assert [line["kind"] for line in read_lines(path)] == ["engine", "request", "engine"]
    assert troubled.counts.lost == []


def test_a_recovery_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Troubled(path, caplog).clear()
    assert [one.message for one in caplog.records][-1].endswith("succeeds again")


def test_a_line_that_cannot_be_written_is_given_up_in_the_end() -> None:
    counts = Counts()
    full = LogFile(Path("/dev/full"))
    log = RequestLog(full, FACTS, counts, retry_s=0.001, patience_s=0.0)
    log.request_ended(record([1]))
    counts.wait_lost()
    log.close(TIMEOUT_S)
    assert counts.lost[0] == "write"


def test_closing_waits_for_no_disk() -> None:
    counts = Counts()
    log = RequestLog(LogFile(Path("/dev/full")), FACTS, counts, retry_s=3600.0)
    for n in range(3):
        log.request_ended(record([n]))
    assert log.close(TIMEOUT_S)
    # The fourth line is the last one of the engine.
    assert counts.lost == ["write"] * 4


def test_closing_gives_up_on_a_writer_that_hangs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(monkeypatch)
    log = RequestLog(LogFile(path), FACTS)
    log.request_ended(record([1]))
    assert log.close(timeout_s=0.0) is False
    blocked.release()
    assert log.close(TIMEOUT_S)


def test_problems_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 1.0
        return now_s

    counts, full = Counts(), LogFile(Path("/dev/full"))
    log = RequestLog(full, FACTS, counts, retry_s=0.0, patience_s=200.0, clock=clock)
    log.request_ended(record([1]))
    counts.wait_lost()
    log.close(TIMEOUT_S)
    num_reports = sum("has a problem" in one.message for one in caplog.records)
    assert 2 <= num_reports <= now_s / 60 + 1


def test_a_line_that_cannot_be_formatted_costs_no_other(path: Path) -> None:
    counts = Counts()
    log = RequestLog(LogFile(path), FACTS, counts)
    log.registry_changed(events.Event())
    log.request_ended(record([1]))
    assert log.close(TIMEOUT_S)
    kinds = [line["kind"] for line in read_lines(path)]
    assert (kinds, counts.lost) == (["engine", "request", "engine"], ["write"])


def test_a_directory_that_vanishes_takes_no_later_line_with_it(path: Path) -> None:
    counts = Counts()
    log = RequestLog(LogFile(path), FACTS, counts)
    log.request_ended(record([1] * 100))
    counts.wait_written(2)
    shutil.rmtree(path.parent)
    log.request_ended(record([1] * 100))
    log.close(TIMEOUT_S)
    lines = read_lines(path)
    assert [line.get("event") for line in lines] == ["continue", None, "end"]
    assert lines[1]["num_known_pages"] == 0
