"""Long-running programs of a cluster: started with a log, watched, and killed at the end.

Owns one process each. What it is started for is its caller's part.
"""

from __future__ import annotations

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
    """One program, by name. Whoever has the same log may end it and start it again.

    The process id stands beside the log, so that a test of another process can do so too.
    """

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._pid_file = log.with_suffix(".pid")
        self._argv = list(argv)
        self._env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[bytes] | None = None

    def is_running(self) -> bool:
        """Say whether the process is there and has not ended, whoever started it."""
        try:
            stat = Path(f"/proc/{self._pid_file.read_text()}/stat").read_text()
        except OSError:
            return False
        # One that has ended stays until its parent asks for its status.
        if stat.rpartition(")")[2].split()[0] != "Z":
            return True
        if self._child is not None:
            self._child.wait()
        return False

    def start(self) -> None:
        """Start the program; its output is appended to the log."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._env
            )
        self._pid_file.write_text(str(self._child.pid))

    def kill(self) -> None:
        """End it at once. Effects: it is gone when this returns."""
        if not self.is_running():
            return
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
        while self.is_running():
            time.sleep(POLL_S)

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until it is ready.

        Raises:
            DaemonFailed: It ended, or the time is over.
        """
        end_s = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running():
                raise DaemonFailed(f"{self.name} has ended:\n{self.log_tail()}")
            if time.monotonic() > end_s:
                raise DaemonFailed(f"{self.name} not ready in {timeout_s} s:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def log_tail(self, num_lines: int = 30) -> str:
        """Return the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])
