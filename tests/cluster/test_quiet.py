"""What must not happen, read from the audit log after everything else has run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.cluster.conftest import ShareRelease
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.release import Release, moment

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
QUIET_S = 60


@pytest.fixture(scope="module")
def release(share_release: ShareRelease) -> Release:
    release = share_release(operator={"resyncSeconds": 5})
    release.apply()
    release.wait_for("Ready", "True")
    return release


def audit(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield what operators asked of the API server, oldest first."""
    with cluster.control_plane.audit_log.open() as log:
        for line in log:
            entry = json.loads(line)
            if entry["user"].get("username", "").endswith("-operator"):
                yield entry


def at(entry: dict[str, Any]) -> datetime:
    return moment(entry["requestReceivedTimestamp"])


def test_profile_at_rest_is_never_written(release: Release, cluster: Cluster) -> None:
    user = f"system:serviceaccount:{release.namespace}:{release.name}-operator"
    began = time.time()
    while time.time() < began + QUIET_S:
        time.sleep(1)
    asked = [
        entry
        for entry in audit(cluster)
        if entry["user"]["username"] == user and at(entry).timestamp() > began
    ]
    assert len(asked) > QUIET_S / 5, "the operator was not even looking"
    assert [entry["requestURI"] for entry in asked if entry["verb"] in WRITES] == []


@pytest.mark.alone
def test_operator_asks_for_nothing_that_it_may_not(cluster: Cluster) -> None:
    refused = [
        (entry["verb"], entry["requestURI"])
        for entry in audit(cluster)
        if entry["responseStatus"]["code"] in (401, 403)
    ]
    assert refused == []
