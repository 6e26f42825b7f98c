"""What must not happen, read from the audit log after everything else has run."""

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
    asked_at_s,
    find_refused,
    read_entries,
)
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.release import Release

QUIET_S = 60
# Within the made-up log.
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
    asked = [
        entry
        for entry in read_entries(cluster.control_plane.audit_log)
        if entry["user"].get("username") == user and asked_at_s(entry) > began
    ]
    assert len(asked) > QUIET_S / 5, "the operator was not even looking"
    assert [entry["requestURI"] for entry in asked if entry["verb"] in WRITES] == []


@pytest.mark.alone
def test_operator_asks_for_nothing_that_it_may_not(cluster: Cluster) -> None:
    plane = cluster.control_plane
    assert find_refused(read_entries(plane.audit_log), plane.api_server.started_s) == []


def entry(moment_s: float, user: str, verb: str, what: str, code: int = 200) -> Entry:
    """Return an entry of the log; ``what`` is "resource/namespace/name"."""
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
def test_refusal_is_excused_only_where_the_rights_were_taken(
    others: list[tuple[str, str]], moment_s: float, is_excused: bool
) -> None:
    log = [entry(LATER_S + place, "admin", *other) for place, other in enumerate(others)]
    found = find_refused([*log, refused(moment_s)], STARTED_S)
    assert found == ([] if is_excused else [("list", "/pods/chat/")])


def test_only_refusals_of_operators_are_found() -> None:
    by_person = entry(LATER_S, "admin", "list", "pods/chat/", 403)
    allowed = entry(LATER_S, "kvreg-operator", "list", "pods/chat/")
    assert find_refused([by_person, allowed], STARTED_S) == []
