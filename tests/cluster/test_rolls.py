"""The effect of profile edits on the pod of a single engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cluster.conftest import MakeRelease
from tests.cluster.harness.cluster import CommandFailed
from tests.cluster.harness.node import GPU_RESOURCE, NUM_GPUS
from tests.cluster.harness.release import PROFILES, Release
from tests.cluster.harness.traffic import Stream, constant_load

HASH = "kvreg.dev/settings-hash"


@pytest.fixture(scope="module")
def shared(share_release: MakeRelease) -> Release:
    release = share_release(engine={"settings": {"memory_gib": 0.25}})
    release.serve()
    return release


@pytest.fixture
def release(shared: Release) -> Release:
    """The shared release with an engine that serves the current profile."""
    shared.ensure_ready_profile()
    return shared


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lanes", 2),
        ("registryEntries", 3),
        ("currentState", "Drop"),
        ("anchors", 0),
        ("restartId", "monday"),
    ],
)
def test_edit_of_any_setting_reaches_the_engine(release: Release, field: str, value: Any) -> None:
    before, hash_before = release.uids(), release.profile["status"]["servingHash"]
    release.edit(**{field: value})
    release.wait_for("Ready", "True")
    status = release.profile["status"]
    assert status["servingHash"] != hash_before
    assert (
        release.target["spec"]["template"]["metadata"]["annotations"][HASH]
        == (status["servingHash"])
    )
    assert release.uids().keys() == before.keys()
    assert release.uids() != before
    if field != "restartId":
        assert status["effective"][field] == value


def test_edit_of_the_rollout_replaces_no_pod(release: Release) -> None:
    before = release.uids()
    release.edit(rollout={"idleTimeoutSeconds": 5, "force": True}, canary={"pods": 1})
    release.wait_for("Ready", "True")
    assert release.uids() == before


def test_replace_without_status_keeps_the_status_and_duplicates_no_object(release: Release) -> None:
    before, maps = release.profile, release.cluster.list("configmaps", release.namespace)
    bare = release.profile_manifest(**before["spec"])
    release.kubectl("replace", "-f", "-", stdin=json.dumps(bare))
    release.wait_for("Ready", "True")
    after = release.profile
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["servingHash"] == before["status"]["servingHash"]
    assert len(release.cluster.list("configmaps", release.namespace)) == len(maps)
    assert len(release.cluster.list("statefulsets", release.namespace)) == 1


def test_roll_waits_for_a_busy_engine_without_cutting_its_requests(release: Release) -> None:
    before, template = release.uids(), release.target["spec"]["template"]
    with constant_load(release.client()) as clients:
        release.wait_until(lambda: clients.num_answers > 0, "the engine is busy")
        entries = release.other_entries
        release.edit(registryEntries=entries)
        release.wait_for("RolloutDeferred", "True", "Busy")
        assert release.target["spec"]["template"] == template
        assert release.uids() == before
        assert release.profile["status"]["waitingFor"]["pods"] == ["kvreg-0"]
    assert clients.errors == []
    release.wait_for("Ready", "True")
    assert release.uids() != before
    assert release.profile["status"]["effective"]["registryEntries"] == entries


def test_busy_engine_is_replaced_with_force(release: Release) -> None:
    before, entries = release.uids(), release.other_entries
    with constant_load(release.client()) as clients:
        release.wait_until(lambda: clients.num_answers > 0, "the engine is busy")
        rollout = {"idleTimeoutSeconds": 0, "force": True}
        release.edit(registryEntries=entries, rollout=rollout)
        release.wait_until(
            lambda: not release.uids().items() & before.items(), "the pod is replaced"
        )
    release.wait_for("Ready", "True")
    assert release.profile["status"]["effective"]["registryEntries"] == entries
    release.edit(rollout=None)


def test_long_response_completes_when_its_pod_is_deleted(release: Release) -> None:
    (name,) = release.ready()
    stream = Stream(release.client(release.pod_url(name)), max_tokens=3000).start()
    release.kubectl("delete", "pod", name, "--wait=false")
    assert not stream.is_over, "the response ended before the pod was deleted"
    assert stream.finish() == "length"
    release.wait_ready(1)


def test_profile_that_does_not_fit_replaces_no_pod(release: Release) -> None:
    before, template = release.uids(), release.target["spec"]["template"]
    release.edit(lanes=64, registryEntries=4000)
    release.wait_for("Accepted", "False", "DoesNotFit")
    assert release.condition("Ready") == ("False", "DoesNotFit")
    (accepted,) = (c for c in release.profile["status"]["conditions"] if c["type"] == "Accepted")
    assert "short by" in accepted["message"]
    assert release.uids() == before
    assert release.target["spec"]["template"] == template


def test_paused_profile_is_applied_only_when_resumed(release: Release) -> None:
    before = release.uids()
    release.edit(registryEntries=release.other_entries, rollout={"paused": True})
    release.wait_for("RolloutDeferred", "True", "Paused")
    assert release.uids() == before
    release.edit(rollout={"paused": False})
    release.wait_for("Ready", "True")
    assert release.uids() != before


def test_leftover_of_a_rolling_update_is_removed(release: Release) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    patch = json.dumps({"spec": {"updateStrategy": strategy}})
    release.kubectl("patch", "statefulset", release.name, "--type=merge", "-p", patch)
    release.edit(registryEntries=release.other_entries)
    release.wait_for("Ready", "True")
    assert release.target["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_manual_scale_of_the_target_is_kept(release: Release) -> None:
    release.kubectl("scale", "statefulset", release.name, "--replicas=2")
    release.wait_ready(2)
    release.edit(registryEntries=release.other_entries)
    release.wait_for("Ready", "True")
    assert release.target["spec"]["replicas"] == 2
    assert release.profile["status"]["pods"]["updated"] == 2
    release.kubectl("scale", "statefulset", release.name, "--replicas=1")
    release.wait_ready(1)


def test_younger_profile_of_the_same_target_has_a_conflict(release: Release) -> None:
    before = release.uids()
    manifest = release.profile_manifest(lanes=2)
    manifest["metadata"]["name"] = "younger"
    release.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def is_conflict() -> bool:
        found = release.cluster.get("kvregistryprofiles", "younger", release.namespace)
        conditions = found.get("status", {}).get("conditions", [])
        return any(c["type"] == "Accepted" and c["reason"] == "Conflict" for c in conditions)

    release.wait_until(is_conflict, "the younger profile shows Conflict")
    release.kubectl("delete", PROFILES, "younger")
    assert release.uids() == before


def test_engines_keep_running_when_the_profile_is_deleted(release: Release) -> None:
    before, spec = release.uids(), release.profile["spec"]
    release.kubectl("delete", PROFILES, release.name, "--timeout=10s")
    assert release.client().models.list().data
    assert release.uids() == before
    release.serve(**spec)
    assert release.uids() == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"currentState": "Drop", "registryEntries": 0}, "only entries drop a state"),
        ({"lanes": 0}, "greater than or equal to 1"),
        ({"lanes": 65}, "less than or equal to 64"),
        ({"registryEntries": -1}, "greater than or equal to 0"),
        ({"currentState": "Maybe"}, "Keep"),
        ({"canary": {"pods": 0}}, "greater than or equal to 1"),
        ({"rollout": {"strategy": "Recreate"}}, "RollingUpdate"),
        ({"targetRef": {"name": "other"}}, "targetRef is immutable"),
        ({"lane": 2}, "unknown field"),
    ],
)
def test_api_server_refuses_an_invalid_profile(
    release: Release, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(CommandFailed, match=message):
        release.apply(**spec)


def test_engine_that_uses_all_gpus_is_replaced_without_a_spare_gpu(
    make_release: MakeRelease,
) -> None:
    cards = {GPU_RESOURCE: str(NUM_GPUS)}
    release = make_release(engine={"resources": {"limits": cards}})
    before = release.uids()
    release.serve(registryEntries=3)
    assert release.uids() != before
    (pod,) = release.pods().values()
    assert pod["spec"]["containers"][0]["resources"]["limits"][GPU_RESOURCE] == str(NUM_GPUS)


def test_slow_model_load_does_not_restart_the_engine(make_release: MakeRelease) -> None:
    release = make_release(engine={"probes": {"liveness": {"periodSeconds": 1}}})
    slow = [
        {
            "op": "add",
            "path": "/spec/template/spec/containers/0/command",
            "value": ["sh", "-c", "sleep 15; exec kvreg serve"],
        }
    ]
    patch = json.dumps(slow)
    release.kubectl("patch", "statefulset", release.name, "--type=json", "-p", patch)
    release.apply()
    release.wait_until(lambda: not release.ready(), "the slow engine starts")
    release.wait_for("Ready", "True")
    (pod,) = release.pods().values()
    assert pod["spec"]["containers"][0]["command"][0] == "sh"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
