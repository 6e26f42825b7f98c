"""Runs the tests of this folder on one cluster: most of them in parallel, then the rest.

Owns the start and stop of the cluster, the two rounds and the exit status. A test that is marked
``alone`` would disturb others, for example by a restart of the API server; such tests run one by
one after all others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.harness.cluster import find_cluster
from tests.cluster.harness.places import MODULE

# The tests mostly wait; more workers would start too many engines at once on few cores.
NUM_WORKERS = 3
# The tests of a file share a release and therefore run on one worker.
ROUNDS = (
    ("-m", "not alone", "-n", str(NUM_WORKERS), "--dist", "loadfile"),
    ("-m", "alone", "-p", "no:xdist"),
)


def main(arguments: list[str]) -> int:
    """Start the cluster, run both rounds, return the highest exit status."""
    cluster = find_cluster()
    names_tests = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    selected = [*arguments, *([] if names_tests else [str(MODULE)])]
    try:
        cluster.start()
        cluster.kubectl("apply", "-f", "charts/kvreg/files/kvregistryprofiles.yaml")
        statuses = [_run_round(options, selected) for options in ROUNDS]
    finally:
        cluster.stop()
    # If tests are selected, one round may be empty, but not both.
    ran = [status for status in statuses if status != pytest.ExitCode.NO_TESTS_COLLECTED]
    return max(ran, default=int(pytest.ExitCode.NO_TESTS_COLLECTED))


def _run_round(options: tuple[str, ...], selected: list[str]) -> int:
    # Longer than any wait of a test, so that the test's own message explains the timeout.
    default_options = ("--durations=10", "--timeout=400")
    command = [sys.executable, "-m", "pytest", *default_options, *options, *selected]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
