"""Lines are written completely or not at all, and the files are bounded."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kvreg_service.telemetry.request_log.writer import LogWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "requests.jsonl"


def write(writer: LogWriter, *lines: bytes) -> list[bool]:
    """Write lines; return those that began a file."""
    begun = []
    for line in lines:
        begun.append(writer.prepare())
        writer.write(line)
    return begun


def test_lines_are_appended_to_what_is_there(path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        writer = LogWriter(path, max_bytes=100, max_files=2)
        write(writer, line)
        writer.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_begins_with_the_first_line_and_with_each_rotation(path: Path) -> None:
    writer = LogWriter(path, max_bytes=8, max_files=9)
    assert write(writer, *[b"1234\n"] * 5) == [True, False, True, False, True]


def test_the_newest_files_are_kept_in_order(path: Path) -> None:
    writer = LogWriter(path, max_bytes=1, max_files=3)
    write(writer, b"1\n", b"2\n", b"3\n", b"4\n")
    left = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    assert left == {
        "requests.jsonl": b"4\n",
        "requests.jsonl.1": b"3\n",
        "requests.jsonl.2": b"2\n",
    }


def test_a_single_file_begins_anew(path: Path) -> None:
    writer = LogWriter(path, max_bytes=1, max_files=1)
    write(writer, b"1\n", b"2\n")
    assert [one.read_bytes() for one in path.parent.iterdir()] == [b"2\n"]


def test_a_full_file_of_an_earlier_process_is_rotated_at_once(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"0123456789\n")
    write(LogWriter(path, max_bytes=10, max_files=2), b"new\n")
    assert path.read_bytes() == b"new\n"


def test_a_line_that_was_torn_by_a_kill_spoils_no_other(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"half')
    write(LogWriter(path, max_bytes=100, max_files=2), b"whole\n")
    assert path.read_bytes() == b'{"half\nwhole\n'


def test_a_file_that_was_moved_away_is_made_again(path: Path) -> None:
    writer = LogWriter(path, max_bytes=100, max_files=2)
    write(writer, b"1\n")
    path.rename(path.with_name("taken"))
    assert write(writer, b"2\n") == [True]
    assert path.read_bytes() == b"2\n"


def test_a_directory_that_has_vanished_is_made_again(path: Path) -> None:
    writer = LogWriter(path, max_bytes=100, max_files=2)
    write(writer, b"1\n")
    shutil.rmtree(path.parent)
    write(writer, b"2\n")
    assert path.read_bytes() == b"2\n"


def test_a_disk_that_fills_up_within_a_line_leaves_no_part_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(path, max_bytes=100, max_files=2)
    write(writer, b"before\n")
    room = [3]

    def write_what_fits(fd: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(fd, data[: room.pop()])

    real_write = os.write
    monkeypatch.setattr(os, "write", write_what_fits)
    with pytest.raises(OSError, match="No space"):
        write(writer, b"a line\n")
    monkeypatch.undo()
    write(writer, b"after\n")
    assert path.read_bytes() == b"before\nafter\n"


def test_a_line_is_written_to_its_end_when_the_kernel_takes_it_in_parts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:2]))
    write(LogWriter(path, max_bytes=100, max_files=2), b"a line\n")
    assert path.read_bytes() == b"a line\n"


def test_a_device_that_is_full_is_an_error_of_the_line() -> None:
    writer = LogWriter(Path("/dev/full"), max_bytes=100, max_files=2)
    writer.prepare()
    with pytest.raises(OSError, match="No space"):
        writer.write(b"a line\n")


def test_what_was_in_the_way_can_be_cleared(path: Path) -> None:
    writer = LogWriter(path, max_bytes=100, max_files=2)
    path.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        writer.prepare()
    path.rmdir()
    assert write(writer, b"1\n") == [True]
