"""The file of the request log: appended to line by line, rotated by size.

Owns the file, the rotated files and the guarantee that a line is written completely or not at all.
It knows nothing about the content of a line, does not retry, and is not thread-safe.
"""

from __future__ import annotations

import os
import stat
from itertools import pairwise
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
# Readable by the group: the content is hashed, but not meant for every user of the machine.
_MODE = 0o640


class LogWriter:
    """Appends lines to ``path``; the rotated files are ``path.1``, ``path.2`` and so on.

    ``max_files`` counts all of them. A file is rotated once it has ``max_bytes``, so it exceeds
    them by one line at most. A file that was moved or deleted is created again.

    Every method may raise OSError; the same call can be retried later.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._fd: int | None = None

    def prepare(self) -> bool:
        """Open the file at ``path`` for the next line, and rotate it if it is full.

        Returns:
            True if the next line is the first one that this object writes to the file.
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
        """Append one line including its line break, after `prepare`. A failure appends nothing."""
        assert self._fd is not None, "prepare opens the file"
        num_written = 0
        try:
            while num_written < len(line):
                num_written += os.write(self._fd, line[num_written:])
        except OSError:
            if num_written:
                # On a full disk a part of the line may be written; truncating needs no space.
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
        """Rename every file to the next number and delete the last one."""
        names = [self._path, *(self._older(n) for n in range(1, self._max_files))]
        if len(names) == 1:
            self._path.unlink(missing_ok=True)
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _end_torn_line(fd: int) -> None:
    """End the partial line of a process that was killed while it wrote."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return
    if os.pread(fd, 1, status.st_size - 1) != b"\n":
        os.write(fd, b"\n")
