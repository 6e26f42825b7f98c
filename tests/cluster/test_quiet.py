"""The audit log shows no needless writes and no denied requests of operators."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from tests.cluster.conftest import MakeRelease
from tests.cluster.harness.audit import (
    GRANTING_S,
    STARTING_S,
    WRITES,
    Entry,
    find_denied_requests,
    read_entries,
    received_at_s,
)
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.release import Release

QUIET_S = 60
# Times in the synthetic log.
STARTED_S, LATER_S = 1000.0, 2000.0


@pytest.fixture(scope="module")
def release(share_release: MakeRelease) -> Release:
    release = share_release(operator={"resyncSeconds": 5})
    release.serve()
    return release


def test_profile_at_rest_is_never_written(release: Release, cluster: Cluster) -> None:
    user = f"system:serviceaccount:{release.namespace}:{release.name}-operator"
    began = time.time()
    time.sleep(QUIET_S)
    received = [
        entry
        for entry in read_entries(cluster.control_plane.audit_log)
        if entry["user"].get("username") == user and received_at_s(entry) > began
    ]
    assert len(received) > QUIET_S / 5, "the operator sent too few requests"
    assert [entry["requestURI"] for entry in received if entry["verb"] in WRITES] == []


@pytest.mark.alone
def test_no_request_of_an_operator_is_denied(cluster: Cluster) -> None:
    plane = cluster.control_plane
    assert find_denied_requests(read_entries(plane.audit_log), plane.api_server.started_s) == []


def entry(moment_s: float, user: str, verb: str, what: str, code: int = 200) -> Entry:
    """Return an entry of the audit log; ``what`` is "resource/namespace/name"."""
    resource, namespace, name = what.split("/")
    return {
        "requestReceivedTimestamp": datetime.fromtimestamp(moment_s, UTC).isoformat(),
        "user": {"username": user},
        "verb": verb,
        "requestURI": f"/{what}",
        "objectRef": {"resource": resource, "namespace": namespace, "name": name},
        "responseStatus": {"code": code},
    }


def refused(moment_s: float, namespace: str = "chat") -> Entry:
    return entry(moment_s, "kvreg-operator", "list", f"pods/{namespace}/", 403)


@pytest.mark.parametrize(
    ("others", "moment_s", "is_excused"),
    [
        ([], LATER_S, False),
        ([], STARTED_S + 1, True),
        ([], STARTED_S + STARTING_S + 1, False),
        ([("delete", "namespaces/chat/chat")], LATER_S + 60, True),
        ([("delete", "namespaces/other/other")], LATER_S + 60, False),
        ([("delete", "pods/chat/chat-0")], LATER_S + 60, False),
        ([("delete", "rolebindings/chat/kvreg")], LATER_S + 60, True),
        ([("delete", "rolebindings/chat/kvreg")], LATER_S - 1, False),
        ([("delete", "roles/chat/kvreg"), ("create", "roles/chat/kvreg")], LATER_S + 1, True),
        (
            [("delete", "roles/chat/kvreg"), ("patch", "roles/chat/kvreg")],
            LATER_S + GRANTING_S + 2,
            False,
        ),
    ],
)
def test_denied_request_is_excused_only_while_permissions_are_missing(
    others: list[tuple[str, str]], moment_s: float, is_excused: bool
) -> None:
    log = [entry(LATER_S + place, "admin", *other) for place, other in enumerate(others)]
    found = find_denied_requests([*log, refused(moment_s)], STARTED_S)
    assert found == ([] if is_excused else [("list", "/pods/chat/")])


def test_only_denied_requests_of_operators_are_found() -> None:
    by_person = entry(LATER_S, "admin", "list", "pods/chat/", 403)
    allowed = entry(LATER_S, "kvreg-operator", "list", "pods/chat/")
    assert find_denied_requests([by_person, allowed], STARTED_S) == []
