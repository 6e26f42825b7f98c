"""The cluster that all tests of this folder share, in isolated Linux namespaces.

Outside of those namespaces no test is collected: ``make test-cluster`` creates them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from tests.cluster.harness.cluster import Cluster, find_cluster
from tests.cluster.harness.places import RUN_VARIABLE
from tests.cluster.harness.release import Release, base_values

collect_ignore_glob = [] if RUN_VARIABLE in os.environ else ["test_*.py"]

MakeRelease = Callable[..., Release]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster, which ``stories`` starts and stops."""
    running = find_cluster()
    yield running
    running.close()


@pytest.fixture(scope="session")
def namespaces() -> Iterator[str]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    return (f"story-{worker}-{number}" for number in itertools.count())


@pytest.fixture
def make_release(cluster: Cluster, namespaces: Iterator[str]) -> Iterator[MakeRelease]:
    """Installs releases, each in its own namespace, and deletes them after the test."""
    yield from _releases(cluster, namespaces)


@pytest.fixture(scope="module")
def share_release(cluster: Cluster, namespaces: Iterator[str]) -> Iterator[MakeRelease]:
    """Installs releases that the tests of a module share, and deletes them after the module."""
    yield from _releases(cluster, namespaces)


def _releases(cluster: Cluster, namespaces: Iterator[str]) -> Iterator[MakeRelease]:
    made: list[Release] = []

    def make(*, replicas: int = 1, **changes: object) -> Release:
        release = Release(cluster, next(namespaces), base_values(replicas=replicas))
        made.append(release)
        release.install(**changes)
        release.wait_installed()
        return release

    yield make
    for release in made:
        options = ("--wait=false", "--ignore-not-found")
        cluster.kubectl("delete", "namespace", release.namespace, *options)
