"""Rolls, sessions and the release survive failures of pods, operator and API server."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.cluster.conftest import MakeRelease
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.credentials import NODE_NAME
from tests.cluster.harness.release import PROFILES, Release
from tests.cluster.harness.traffic import Stream, occasional_requests


@pytest.fixture(scope="module")
def shared(share_release: MakeRelease) -> Release:
    # The time in which kube-proxy removes a terminating pod from the Service.
    release = share_release(replicas=2, engine={"preStopSeconds": 2})
    release.serve()
    return release


@pytest.fixture
def pair(shared: Release) -> Release:
    """Two engines that serve the current profile."""
    shared.ensure_ready_profile()
    return shared


def replaced(release: Release, before: dict[str, str]) -> set[str]:
    """Return the names of pods that are new and ready."""
    now = release.uids()
    return {name for name in release.ready() if now.get(name) != before.get(name)}


def test_canary_stops_after_its_pods_and_continues_when_removed(pair: Release) -> None:
    before = pair.uids()
    pair.edit(registryEntries=pair.other_entries, canary={"pods": 1})
    pair.wait_for("RolloutDeferred", "True", "Canary")
    assert replaced(pair, before) == {"kvreg-1"}
    assert pair.condition("Ready") == ("False", "NotServed")
    pair.edit(canary=None)
    pair.wait_for("Ready", "True")
    assert replaced(pair, before) == {"kvreg-0", "kvreg-1"}


def test_reverted_canary_replaces_no_other_pod(pair: Release) -> None:
    before, entries = pair.uids(), pair.profile["spec"]["registryEntries"]
    pair.edit(registryEntries=pair.other_entries, canary={"pods": 1})
    pair.wait_for("RolloutDeferred", "True", "Canary")
    pair.edit(registryEntries=entries, canary=None)
    pair.wait_for("Ready", "True")
    assert replaced(pair, before) == {"kvreg-1"}
    assert pair.profile["status"]["effective"]["registryEntries"] == entries


def test_roll_replaces_one_engine_at_a_time(pair: Release) -> None:
    before = pair.uids()
    seen: list[int] = []

    def is_done() -> bool:
        seen.append(len(pair.ready()))
        return pair.condition("Ready")[0] == "True" and replaced(pair, before) == set(before)

    pair.edit(registryEntries=pair.other_entries)
    pair.wait_until(is_done, "both engines are replaced")
    assert min(seen) == 1
    assert seen[-1] == 2


def test_requests_to_the_service_do_not_fail_during_a_roll(pair: Release) -> None:
    before = pair.uids()
    with occasional_requests(pair.client(max_retries=0)) as clients:
        pair.edit(registryEntries=pair.other_entries)
        pair.wait_until(lambda: replaced(pair, before) == set(before), "both are replaced")
    pair.wait_for("Ready", "True")
    assert clients.errors == []
    assert clients.num_answers > 0


def test_revert_during_a_roll_is_served(pair: Release) -> None:
    before, entries = pair.uids(), pair.profile["spec"]["registryEntries"]
    pair.edit(registryEntries=pair.other_entries)
    pair.wait_until(lambda: len(pair.uids().items() - before.items()) == 1, "one pod is new")
    pair.edit(registryEntries=entries)
    pair.wait_for("Ready", "True")
    assert pair.profile["status"]["effective"]["registryEntries"] == entries
    assert len(pair.ready()) == 2


def test_restarted_operator_finishes_the_roll(pair: Release) -> None:
    before, entries = pair.uids(), pair.other_entries
    pair.edit(registryEntries=entries)
    pair.wait_until(lambda: len(pair.uids().items() - before.items()) == 1, "one pod is new")
    (operator,) = pair.uids("operator")
    pair.kubectl("delete", "pod", operator, "--grace-period=0", "--force")
    pair.wait_for("Ready", "True")
    assert replaced(pair, before) == {"kvreg-0", "kvreg-1"}
    assert pair.profile["status"]["effective"]["registryEntries"] == entries


@pytest.mark.alone
def test_engine_serves_without_the_api_server_and_the_roll_finishes_later(
    make_release: MakeRelease, cluster: Cluster
) -> None:
    release = make_release(replicas=2)
    before = release.uids()
    urls = {name: release.pod_url(name) for name in before}
    release.apply()
    release.wait_until(lambda: len(release.uids().items() - before.items()) == 1, "one pod is new")
    cluster.control_plane.api_server.kill()
    answer = release.client(urls["kvreg-0"], timeout=20).models.list()
    assert answer.data
    cluster.control_plane.start_api_server()
    release.wait_for("Ready", "True")
    assert replaced(release, before) == {"kvreg-0", "kvreg-1"}


def test_operator_upgrade_replaces_no_engine(pair: Release) -> None:
    before, operators = pair.uids(), pair.uids("operator")
    pair.install(operator={"podAnnotations": {"version": "next"}})
    pair.wait_until(
        lambda: (
            not pair.uids("operator").keys() & operators.keys() and bool(pair.ready("operator"))
        ),
        "a new operator pod is ready",
    )
    pair.wait_for("Ready", "True")
    assert pair.uids() == before


def test_chart_upgrade_rolls_idle_engines_one_by_one(pair: Release) -> None:
    before, effective = pair.uids(), pair.profile["status"]["effective"]
    config_map = pair.target["spec"]["template"]["spec"]["volumes"]
    pair.install(engine={"podAnnotations": {"version": "next"}})
    pair.wait_until(lambda: replaced(pair, before) == set(before), "both engines are replaced")
    pair.wait_for("Ready", "True")
    # The template still has the fields that the operator owns.
    assert [v for v in config_map if v["name"] == "kvreg-profile"] == [
        v
        for v in pair.target["spec"]["template"]["spec"]["volumes"]
        if v["name"] == "kvreg-profile"
    ]
    assert pair.profile["status"]["effective"] == effective


def test_killed_engine_restarts_with_its_profile(
    make_release: MakeRelease, cluster: Cluster
) -> None:
    release = make_release()
    release.serve(registryEntries=3)
    before = release.uids()
    (pod,) = release.pods().values()
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    tasks = [line.split() for line in cluster.runtime.ctr("tasks", "ls").splitlines()]
    (pid,) = (int(task[1]) for task in tasks if task[0] == container)
    os.kill(pid, signal.SIGKILL)

    def has_restarted() -> bool:
        (pod,) = release.pods().values()
        return pod["status"]["containerStatuses"][0]["restartCount"] == 1 and bool(release.ready())

    release.wait_until(has_restarted, "the container has restarted")
    release.wait_for("Ready", "True")
    assert release.uids() == before
    assert release.profile["status"]["effective"]["registryEntries"] == 3


def test_engine_that_cannot_start_is_reported_and_a_revert_recovers_it(
    make_release: MakeRelease,
) -> None:
    release = make_release()
    release.serve()
    good = release.values["engine"]["image"]["tag"]
    release.install(engine={"image": {"tag": "does-not-exist"}})
    release.wait_for("Degraded", "True", "PodFailing")
    assert release.condition("Ready")[0] == "False"
    release.install(engine={"image": {"tag": good}})
    release.wait_for("Ready", "True")
    assert release.condition("Degraded")[0] == "False"


def test_first_profile_that_does_not_fit_is_refused_without_a_ready_engine(
    make_release: MakeRelease,
) -> None:
    release = make_release(engine={"settings": {"memory_gib": 0.25}})
    crash = [{"op": "add", "path": "/spec/template/spec/containers/0/command", "value": ["false"]}]
    release.kubectl("patch", "statefulset", release.name, "--type=json", "-p", json.dumps(crash))
    release.kubectl("delete", "pod", "kvreg-0")
    template = release.target["spec"]["template"]
    release.apply(lanes=64, registryEntries=4000)
    release.wait_for("Accepted", "False", "DoesNotFit")
    assert release.target["spec"]["template"] == template


@pytest.mark.alone
def test_node_with_a_single_engine_can_be_drained(
    make_release: MakeRelease, cluster: Cluster
) -> None:
    release = make_release(engine={"podLabels": {"drained": "yes"}})
    release.serve()
    (name,) = release.ready()
    stream = Stream(release.client(release.pod_url(name)), max_tokens=3000).start()
    options = ("--pod-selector=drained=yes", "--delete-emptydir-data", "--timeout=60s")
    try:
        cluster.kubectl("drain", NODE_NAME, *options)
        assert stream.finish() == "length"
        assert release.ready() == set()
    finally:
        cluster.kubectl("uncordon", NODE_NAME)
    release.wait_ready(1)
    release.wait_for("Ready", "True")


def test_profile_and_release_can_be_deleted_without_an_operator(
    make_release: MakeRelease, cluster: Cluster
) -> None:
    release = make_release()
    release.serve()
    release.kubectl("scale", f"deployment/{release.name}-operator", "--replicas=0")
    release.wait_until(lambda: not release.pods("operator"), "the operator is gone")
    release.kubectl("delete", PROFILES, release.name, "--timeout=10s")
    cluster.kubectl("delete", "namespace", release.namespace, "--timeout=60s")
