"""Runs the tests of this folder on one cluster: most of them side by side, then the rest.

Owns the cluster's life, the two rounds and the exit status. A test that is marked ``alone`` does
what others would notice, such as restarting the API server; it has the cluster for itself, after
all others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.harness.cluster import find_cluster
from tests.cluster.harness.places import MODULE

# They wait most of the time; more would start engines side by side on few cores.
NUM_WORKERS = 3
# One worker for a file: its tests share a release.
ROUNDS = (
    ("-m", "not alone", "-n", str(NUM_WORKERS), "--dist", "loadfile"),
    ("-m", "alone", "-p", "no:xdist"),
)


def main(arguments: list[str]) -> int:
    """Start the cluster, run both rounds, return the first status that is not 0."""
    cluster = find_cluster()
    names_tests = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    asked = [*arguments, *([] if names_tests else [str(MODULE)])]
    try:
        cluster.start()
        cluster.kubectl("apply", "-f", "charts/kvreg/files/kvregistryprofiles.yaml")
        statuses = [_run_round(options, asked) for options in ROUNDS]
    finally:
        cluster.stop()
    # A round may be empty where somebody asked for few tests, but not both.
    ran = [status for status in statuses if status != pytest.ExitCode.NO_TESTS_COLLECTED]
    return max(ran, default=int(pytest.ExitCode.NO_TESTS_COLLECTED))


def _run_round(options: tuple[str, ...], asked: list[str]) -> int:
    # Far more than any wait of a story, whose own message says what did not come.
    usual = ("--durations=10", "--timeout=400")
    command = [sys.executable, "-m", "pytest", *usual, *options, *asked]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
