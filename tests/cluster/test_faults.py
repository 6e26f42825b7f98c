"""Edits of a profile are served although requests of the operator to the API server fail.

A proxy between operator and API server injects the faults. Each test edits the profile meanwhile
and checks the outcome directly at the API server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.conftest import MakeRelease
from tests.cluster.harness.api_proxy import ApiProxy, Fault
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.release import PROFILES, Release

PROFILE_KIND = PROFILES.partition(".")[0]


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[ApiProxy]:
    proxy = ApiProxy(cluster.credentials)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def shared(share_release: MakeRelease, proxy: ApiProxy) -> Release:
    release = share_release(operator={"resyncSeconds": 4, "deafAfterSeconds": 8})
    before = release.uids("operator")
    release.kubectl("set", "env", f"deployment/{release.name}-operator", *proxy.variables)
    release.wait_until(
        lambda: bool(release.ready("operator") - before.keys()), "the operator uses the proxy"
    )
    release.serve(registryEntries=1)
    return release


@pytest.fixture
def release(shared: Release, proxy: ApiProxy) -> Iterator[Release]:
    """The release; before and after each test no request of the operator fails."""
    yield shared
    proxy.fail()
    shared.wait_ready(1, "operator")


def restarts(release: Release) -> int:
    (pod,) = release.pods("operator").values()
    count: int = pod["status"]["containerStatuses"][0]["restartCount"]
    return count


def serve_another_profile(release: Release) -> None:
    entries = release.other_entries
    release.edit(registryEntries=entries)
    release.wait_until(
        lambda: (
            release.profile["status"].get("effective", {}).get("registryEntries") == entries
            and release.condition("Ready")[0] == "True"
        ),
        "the edit is served",
    )


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((Fault(PROFILE_KIND, 500, is_watch=True),), id="watch-500"),
        pytest.param((Fault(PROFILE_KIND, 403, is_watch=True),), id="watch-403"),
        pytest.param((Fault(PROFILE_KIND, 429, is_watch=True, retry_after_s=1),), id="watch-429"),
        pytest.param((Fault(PROFILE_KIND, None, is_watch=True),), id="watch-reset"),
        pytest.param((Fault("pods", 500, is_watch=True),), id="pods-watch-500"),
    ],
)
def test_edit_is_served_while_watches_fail(
    release: Release, proxy: ApiProxy, faults: tuple[Fault, ...]
) -> None:
    proxy.fail(*faults)
    serve_another_profile(release)
    assert proxy.num_failed > 0


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(PROFILE_KIND, 403), id="everything-403"),
        pytest.param(Fault(PROFILE_KIND, 500), id="everything-500"),
        pytest.param(Fault(PROFILE_KIND, None), id="everything-reset"),
        pytest.param(Fault("statefulsets", 429, retry_after_s=1), id="everything-429"),
    ],
)
def test_edit_is_served_once_the_api_server_recovers(
    release: Release, proxy: ApiProxy, fault: Fault
) -> None:
    before = proxy.num_failed
    proxy.fail(fault)
    release.wait_until(lambda: proxy.num_failed > before + 2, "requests of the operator fail")
    engines = release.uids()
    release.edit(restartId=str(fault))
    proxy.fail()
    release.wait_for("Ready", "True")
    assert release.uids() != engines


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(PROFILE_KIND, 403), id="lists-403"),
        pytest.param(Fault("pods", 500, is_watch=False), id="lists-500"),
        pytest.param(Fault("statefulsets", None, is_watch=False), id="lists-reset"),
    ],
)
def test_operator_that_cannot_list_is_restarted(
    release: Release, proxy: ApiProxy, fault: Fault
) -> None:
    before = restarts(release)
    proxy.fail(fault)
    release.wait_until(lambda: restarts(release) > before, "the operator is restarted")


def test_operator_whose_watches_fail_is_not_restarted(release: Release, proxy: ApiProxy) -> None:
    before = restarts(release)
    proxy.fail(Fault(PROFILE_KIND, 500, is_watch=True))
    failed = proxy.num_failed
    # This takes longer than the limit of the probe, so that Kopf has exited and started again.
    release.wait_until(lambda: proxy.num_failed > failed + 6, "Kopf was started again")
    assert restarts(release) == before
