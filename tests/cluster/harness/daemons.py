"""Long-running programs of a cluster: started with a log, watched, and killed at the end.

Owns one child process each. What it is started for is its caller's part.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_S = 0.05


class DaemonFailed(Exception):
    """A program ended, or was not ready in time. The message has the end of its log."""


class Daemon:
    """One program, by name. ``start`` may be called again after ``kill``."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def start(self) -> None:
        """Start the program; its output is appended to the log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._env
            )

    def kill(self) -> None:
        """End it at once. Effects: it is gone when this returns."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until it is ready.

        Raises:
            DaemonFailed: It ended, or the time is over.
        """
        end_s = time.monotonic() + timeout_s
        while not is_ready():
            assert self._process is not None, f"{self.name} was not started"
            if (status := self._process.poll()) is not None:
                raise DaemonFailed(f"{self.name} ended with status {status}:\n{self.log_tail()}")
            if time.monotonic() > end_s:
                raise DaemonFailed(f"{self.name} not ready in {timeout_s} s:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def log_tail(self, num_lines: int = 30) -> str:
        """Return the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])
