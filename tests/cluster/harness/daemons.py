"""Long-running programs of a cluster: start with a log file, status, and kill.

Each daemon owns one process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_S = 0.05


class DaemonFailed(Exception):
    """A daemon exited, or was not ready in time. The message has the end of its log."""


class Daemon:
    """One program. Another object with the same log file controls the same process.

    The process id is stored next to the log, so that another process can kill and restart it too.
    """

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._pid_file = log.with_suffix(".pid")
        self._argv = list(argv)
        self._env = {**os.environ, **(env or {})}

    def is_running(self) -> bool:
        """Return whether the process runs, even if another process has started it."""
        try:
            pid = int(self._pid_file.read_text())
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        # An exited process is a zombie until its parent reaps it.
        if stat.rpartition(")")[2].split()[0] != "Z":
            return True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return False

    def start(self) -> None:
        """Start the program, which may outlive this process. Its output is appended to the log."""
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawnp(
            self._argv[0],
            self._argv,
            self._env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            # Python ignores these signals, and the child would inherit that.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        self._pid_file.write_text(str(pid))

    @property
    def started_s(self) -> float:
        """The time of the last start, in seconds since the epoch."""
        return self._pid_file.stat().st_mtime

    def kill(self) -> None:
        """Kill the process and wait until it has exited."""
        if not self.is_running():
            return
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
        while self.is_running():
            time.sleep(POLL_S)

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until ``is_ready`` returns true.

        Raises:
            DaemonFailed: The process exited, or the timeout expired.
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
