"""``python -m tests.cluster``: prepares a real cluster, and runs tests or a shell in it.

Owns the check for missing programs, and the order: programs, images, isolation, command.
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
    print_progress,
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
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("what", choices=("test", "shell", "programs"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for pytest")
    options = parser.parse_args()
    cache = find_cache()
    cache.root.mkdir(parents=True, exist_ok=True)
    try:
        if options.what == "programs":
            with _locked(cache.lock):
                ensure_programs(cache)
            return 0
        _require_parts()
        with _locked(MACHINE_LOCK), _locked(cache.lock):
            return _run_inside(cache, _command(options.what, options.arguments))
    except ProgramsMissing as err:
        return _report_missing(str(err))


def _run_inside(cache: Cache, command: list[str]) -> int:
    binaries = ensure_programs(cache)
    # The isolated network has no access to the internet.
    for origin in ORIGINS:
        ensure_definitions(cache, origin)
    # A short path, because the paths of sockets in it have a length limit.
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
    """Check that this machine has all that a cluster needs.

    Raises:
        ProgramsMissing: A program or a permission is missing.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ProgramsMissing("a cluster needs Linux and root")
    # Debian installs some of these in folders that are only in root's PATH.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    absent = {package for part, package in PARTS.items() if shutil.which(part) is None}
    if not (CNI_PLUGINS / "bridge").is_file():
        absent.add("containernetworking-plugins")
    if absent:
        names = " ".join(sorted(absent))
        raise ProgramsMissing(f"`make system-deps` installs what is missing: {names}")


def _report_missing(reason: str) -> int:
    rule = "=" * 100
    sys.stderr.write(f"{rule}\nNO CLUSTER, AND NONE OF ITS TESTS RAN: {reason}\n{rule}\n")
    return STATUS_MISSING if is_ci() else STATUS_SKIPPED


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock; wait while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_progress(f"waiting for another run, which holds {path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
