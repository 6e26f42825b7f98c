"""A place of its own for a cluster: network, processes and mounts that vanish with it.

Owns the way in, as process 1 of that place, and the traces that the machine's control groups would
keep. Everything else dies with the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.harness.node import CGROUP

_UNSHARE = (
    "unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
# Of the machine, and written by programs that believe it is theirs.
_FRESH = (
    "/run/netns", "/run/containerd", "/run/runc", "/var/lib/cni", "/var/log/pods",
    "/var/log/containers",
)  # fmt: skip
_CGROUPS = Path("/sys/fs/cgroup")


def run_isolated(command: Sequence[str], env: dict[str, str]) -> int:
    """Run a command inside, and return its status once nothing of it is left."""
    _make_cgroups()
    inside = [sys.executable, "-m", "tests.cluster.harness.isolation", *command]
    try:
        return subprocess.run([*_UNSHARE, *inside], env=env, check=False).returncode
    finally:
        _remove_cgroups()


def _hierarchies() -> list[Path]:
    """Return the roots of all hierarchies: one, or with version 1 one for each controller."""
    if (_CGROUPS / "cgroup.controllers").is_file():
        return [_CGROUPS]
    return [root for root in _CGROUPS.iterdir() if root.is_dir() and not root.is_symlink()]


def _make_cgroups() -> None:
    """Make the group below which the kubelet makes its own; it wants to find it."""
    _remove_cgroups()
    for root in _hierarchies():
        (root / CGROUP).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # Version 1 begins with none, and no process can live without.
            if root.name == "cpuset" and (root / name).is_file():
                (root / CGROUP / name).write_text((root / name).read_text())


def _remove_cgroups() -> None:
    for root in _hierarchies():
        for folder, _, _ in os.walk(root / CGROUP, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _be_process_one(command: Sequence[str]) -> int:
    """Run the command, and bury every orphan until it ends."""
    for folder in _FRESH:
        Path(folder).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    child = os.posix_spawnp(command[0], list(command), os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(_be_process_one(sys.argv[1:]))
