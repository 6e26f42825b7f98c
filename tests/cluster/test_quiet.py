"""What must not happen, read from the audit log after everything else has run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.cluster.conftest import MakeRelease
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.release import Release

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
QUIET_S = 60
STARTING_S = 15


@pytest.fixture(scope="module")
def release(share_release: MakeRelease) -> Release:
    release = share_release(operator={"resyncSeconds": 5})
    release.serve()
    return release


def entries(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield what anybody asked of the API server, oldest first."""
    with cluster.control_plane.audit_log.open() as log:
        for line in log:
            yield json.loads(line)


def audit(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield what operators asked."""
    for entry in entries(cluster):
        if entry["user"].get("username", "").endswith("-operator"):
            yield entry


def at_s(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()


def test_profile_at_rest_is_never_written(release: Release, cluster: Cluster) -> None:
    user = f"system:serviceaccount:{release.namespace}:{release.name}-operator"
    began = time.time()
    time.sleep(QUIET_S)
    asked = [
        entry
        for entry in audit(cluster)
        if entry["user"]["username"] == user and at_s(entry) > began
    ]
    assert len(asked) > QUIET_S / 5, "the operator was not even looking"
    assert [entry["requestURI"] for entry in asked if entry["verb"] in WRITES] == []


def deletions(cluster: Cluster) -> dict[str, float]:
    """Return since when each namespace goes, with its Role, while its operator still runs."""
    asked: dict[str, float] = {}
    for entry in entries(cluster):
        what = entry.get("objectRef", {})
        if entry["verb"] == "delete" and what.get("resource") == "namespaces":
            asked.setdefault(what["name"], at_s(entry))
    return asked


@pytest.mark.alone
def test_operator_asks_for_nothing_that_it_may_not(cluster: Cluster) -> None:
    gone = deletions(cluster)
    # One that has just started does not know the Roles yet, and refuses everybody.
    started_s = cluster.control_plane.api_server.started_s

    def is_excused(entry: dict[str, Any]) -> bool:
        asked_s = at_s(entry)
        namespace = entry.get("objectRef", {}).get("namespace", "")
        is_starting = started_s - 1 <= asked_s <= started_s + STARTING_S
        return is_starting or asked_s >= gone.get(namespace, float("inf"))

    refused = [
        (entry["verb"], entry["requestURI"])
        for entry in audit(cluster)
        if entry["responseStatus"]["code"] in (401, 403) and not is_excused(entry)
    ]
    assert refused == []
