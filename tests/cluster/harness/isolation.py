"""Isolation for a cluster: network, PID and mount namespaces that end with the cluster.

Owns the init process of the namespaces, and the removal of the cluster's cgroups. All other state
ends with the init process.
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
# Folders of the machine that programs of the cluster would write to.
_FRESH = (
    "/run/netns", "/run/containerd", "/run/runc", "/var/lib/cni", "/var/log/pods",
    "/var/log/containers",
)  # fmt: skip
_CGROUPS = Path("/sys/fs/cgroup")


def run_isolated(command: Sequence[str], env: dict[str, str]) -> int:
    """Run a command in new namespaces; return its exit status after all of its processes exited."""
    _make_cgroups()
    inside = [sys.executable, "-m", "tests.cluster.harness.isolation", *command]
    try:
        return subprocess.run([*_UNSHARE, *inside], env=env, check=False).returncode
    finally:
        _remove_cgroups()


def _hierarchies() -> list[Path]:
    """Return the roots of all cgroup hierarchies: one, or with version 1 one per controller."""
    if (_CGROUPS / "cgroup.controllers").is_file():
        return [_CGROUPS]
    return [root for root in _CGROUPS.iterdir() if root.is_dir() and not root.is_symlink()]


def _make_cgroups() -> None:
    """Create the parent cgroup that the kubelet requires for its own cgroups."""
    _remove_cgroups()
    for root in _hierarchies():
        (root / CGROUP).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # In version 1 these are empty, and a cgroup without them cannot hold processes.
            if root.name == "cpuset" and (root / name).is_file():
                (root / CGROUP / name).write_text((root / name).read_text())


def _remove_cgroups() -> None:
    for root in _hierarchies():
        for folder, _, _ in os.walk(root / CGROUP, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _run_as_init(command: Sequence[str]) -> int:
    """Run the command as a child, and reap orphans until it exits."""
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
    sys.exit(_run_as_init(sys.argv[1:]))
