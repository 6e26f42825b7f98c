"""``python -m tests.cluster``: builds what a real cluster needs, and runs tests or a shell in one.

Owns what is missing and how that is said, and the order: programs, images, isolation, command.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.harness.definitions import ORIGINS, ensure_definitions
from tests.cluster.harness.images import ensure_images
from tests.cluster.harness.isolation import run_isolated
from tests.cluster.harness.places import (
    BINARIES_VARIABLE,
    MACHINE_LOCK,
    RUN_VARIABLE,
    Cache,
    find_cache,
    say,
)
from tests.cluster.harness.programs import ProgramsMissing, ensure_programs
from tests.cluster.harness.runtime import CNI_PLUGINS
from tests.system_parts import is_ci

PARTS = {
    "buildah": "buildah",
    "containerd": "containerd",
    "conntrack": "conntrack",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "runc": "runc",
    "setpriv": "util-linux",
    "sysctl": "procps",
    "unshare": "util-linux",
}
"""The Debian package of each program that the cluster drives."""

STATUS_SKIPPED = 0
STATUS_MISSING = 3


def main() -> int:
    """Read the command line and do it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("what", choices=("test", "shell", "programs"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for pytest")
    asked = parser.parse_args()
    cache = find_cache()
    cache.root.mkdir(parents=True, exist_ok=True)
    try:
        if asked.what == "programs":
            with _held(cache.lock):
                ensure_programs(cache)
            return 0
        _require_parts()
        with _held(MACHINE_LOCK), _held(cache.lock):
            return _run_inside(cache, _command(asked.what, asked.arguments))
    except ProgramsMissing as err:
        return _give_up(str(err))


def _run_inside(cache: Cache, command: list[str]) -> int:
    binaries = ensure_programs(cache)
    # There is no network inside.
    for origin in ORIGINS:
        ensure_definitions(cache, origin)
    # Sockets lie here, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="kvreg-") as run:
        folder = Path(run)
        (folder / "logs").mkdir()
        ensure_images(cache, folder)
        variables = {RUN_VARIABLE: run, BINARIES_VARIABLE: str(binaries)}
        try:
            return run_isolated(command, {**os.environ, **variables})
        finally:
            shutil.rmtree(cache.logs, ignore_errors=True)
            shutil.copytree(folder / "logs", cache.logs)


def _command(what: str, arguments: list[str]) -> list[str]:
    module = "tests.cluster.shell" if what == "shell" else "tests.cluster.stories"
    return [sys.executable, "-m", module, *arguments]


def _require_parts() -> None:
    """Say what this machine lacks.

    Raises:
        ProgramsMissing: It cannot run a cluster.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ProgramsMissing("a cluster needs Linux and root")
    # Debian keeps some of these where only root looks.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    absent = {package for part, package in PARTS.items() if shutil.which(part) is None}
    if not (CNI_PLUGINS / "bridge").is_file():
        absent.add("containernetworking-plugins")
    if absent:
        names = " ".join(sorted(absent))
        raise ProgramsMissing(f"`make system-deps` installs what is missing: {names}")


def _give_up(reason: str) -> int:
    rule = "=" * 100
    sys.stderr.write(f"{rule}\nNO CLUSTER, AND NONE OF ITS TESTS RAN: {reason}\n{rule}\n")
    return STATUS_MISSING if is_ci() else STATUS_SKIPPED


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a lock, after whoever holds it now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run, which holds {path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
