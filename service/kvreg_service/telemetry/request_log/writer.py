"""The file that the request log is written to: appended line by line, rotated by size.

Owns the file, its older copies and the promise that a line is in it whole or not at all. It knows
nothing of what is in a line, never retries, and is used by one thread.
"""

from __future__ import annotations

import os
import stat
from itertools import pairwise
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
# Readable by the operator's group: what it holds is hashed, and still nobody else's business.
_MODE = 0o640


class LogWriter:
    """Appends lines to ``path``. Beside it lie ``path.1``, the file before, ``path.2`` and so on.

    ``max_files`` counts all of them. A file begins anew when it has ``max_bytes``, so it is longer
    than that by one line at most. A file that somebody moved away or deleted is made again.

    Every method may raise OSError; the same call can be made again later.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._fd: int | None = None

    def prepare(self) -> bool:
        """Make sure that the next line goes to the file at ``path``, and that it has room.

        Returns:
            True when that is another file than for the line before, or the first one.
        """
        if self._fd is not None and self._is_in_place(self._fd):
            if not self._is_full(self._fd):
                return False
            self._rotate()
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, _FLAGS, _MODE)
        try:
            if self._is_full(fd):
                self._rotate()
                os.close(fd)
                fd = os.open(self._path, _FLAGS, _MODE)
            _end_torn_line(fd)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def write(self, line: bytes) -> None:
        """Append one line, with its end, behind `prepare`. When it fails, nothing was appended."""
        assert self._fd is not None, "prepare opens the file"
        num_written = 0
        try:
            while num_written < len(line):
                num_written += os.write(self._fd, line[num_written:])
        except OSError:
            if num_written:
                # A full disk takes what fits, and gives room back always.
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - num_written)
            raise

    def close(self) -> None:
        """Close the file. Idempotent; `prepare` opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _is_in_place(self, fd: int) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(fd))

    def _is_full(self, fd: int) -> bool:
        status = os.fstat(fd)
        return stat.S_ISREG(status.st_mode) and status.st_size >= self._max_bytes

    def _rotate(self) -> None:
        """Move every file one place on; the last one is gone."""
        names = [self._path, *(self._older(n) for n in range(1, self._max_files))]
        if len(names) == 1:
            self._path.unlink(missing_ok=True)
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _end_torn_line(fd: int) -> None:
    """End the line that a process left unfinished when it was killed."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return
    if os.pread(fd, 1, status.st_size - 1) != b"\n":
        os.write(fd, b"\n")
