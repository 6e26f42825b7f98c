"""Objects of the API server become the values of an observation."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.objects import TARGET, make_engine, make_profile

from kvreg_operator.clients.engine import (
    EffectiveProfile,
    EngineReport,
    FitAnswer,
    Registry,
)
from kvreg_operator.manifests.stateful_set import build_template_patch
from kvreg_operator.observe.parsing import (
    build_observation,
    parse_pod,
    parse_report,
    parse_target,
)
from kvreg_operator.plan.observation import Observation, Pod

PROFILE = make_profile()
TEMPLATE = build_template_patch(
    namespace="serving", target_name=TARGET, container="engine", settings_hash="abc"
)["spec"]["template"]
RUNNING = {"name": "engine", "started": True, "state": {"running": {"startedAt": "now"}}}


def stateful_set(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": TARGET,
            "uid": "uid-of-target",
            "resourceVersion": "7",
            "generation": 3,
        },
        "spec": {"template": TEMPLATE, **spec},
        "status": {"observedGeneration": 2, "updateRevision": "chat-7c9"},
    }


def pod(
    name: str = "chat-1",
    *,
    owner: str = "uid-of-target",
    state: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "labels": {"controller-revision-hash": "chat-7c9"},
            "ownerReferences": [{"uid": owner, "controller": True}],
            **TEMPLATE["metadata"],
            **metadata,
        },
        "spec": TEMPLATE["spec"],
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [RUNNING if state is None else {"name": "engine", **state}],
        },
    }


def read(**changes: Any) -> Observation:
    parts: dict[str, Any] = {
        "target": stateful_set(),
        "pods": [],
        "config_maps": [],
        "reports": {},
        "others": [],
    }
    return build_observation(PROFILE, **{**parts, **changes})


RIVAL = make_profile("other").metadata


def test_template_that_the_operator_wrote_is_recognised() -> None:
    target = parse_target(stateful_set(), "engine")
    assert (target.settings_hash, target.config_map) == ("abc", "chat-profile-abc")


def test_generations_and_revision_are_read() -> None:
    target = parse_target(stateful_set(), "engine")
    assert (target.generation, target.observed_generation) == (3, 2)
    assert target.update_revision == "chat-7c9"


def test_defaults_of_a_stateful_set_are_kubernetes_own() -> None:
    target = parse_target(stateful_set(), "engine")
    assert (target.replicas, target.strategy) == (1, "RollingUpdate")


def test_no_replicas_are_none() -> None:
    assert parse_target(stateful_set(replicas=0), "engine").replicas == 0


def test_ordinals_begin_at_the_start_of_the_stateful_set() -> None:
    target = parse_target(stateful_set(replicas=2, ordinals={"start": 5}), "engine")
    assert target.ordinals == range(5, 7)


def test_strategy_is_read() -> None:
    assert (
        parse_target(stateful_set(updateStrategy={"type": "OnDelete"}), "engine").strategy
        == "OnDelete"
    )


def test_template_without_settings_has_no_hash() -> None:
    bare = {"metadata": {}, "spec": {"containers": [{"name": "engine"}]}}
    target = parse_target(stateful_set(template=bare), "engine")
    assert (target.settings_hash, target.config_map) == (None, None)


REPORT = EngineReport(
    Registry(
        profile=EffectiveProfile(
            model="reference",
            lanes=1,
            entries=2,
            current_state="keep",
            anchors=2,
            max_context_tokens=4096,
        ),
        running=1,
        queued=2,
        is_draining=True,
    ),
    FitAnswer(fits=True, required_bytes=100, available_bytes=200, short_by_bytes=0),
)
ENGINE = make_engine(PROFILE, running=1, queued=2, is_draining=True)


def test_report_of_an_engine_is_parsed_into_the_terms_of_the_profile() -> None:
    assert parse_report(REPORT) == ENGINE


def test_running_pod_is_read() -> None:
    assert parse_pod(pod(), "engine", REPORT) == Pod(
        name="chat-1",
        uid="uid-of-chat-1",
        ordinal=1,
        revision="chat-7c9",
        settings_hash="abc",
        config_map="chat-profile-abc",
        is_started=True,
        is_ready=True,
        is_terminating=False,
        engine=ENGINE,
        failure=None,
    )


@pytest.mark.parametrize(
    "state",
    [
        {"started": False, "state": {"running": {}}},
        {"started": True, "state": {"terminated": {"exitCode": 1}}},
        {"state": {"waiting": {"reason": "ContainerCreating"}}},
    ],
    ids=["before its probe", "ended", "being made"],
)
def test_container_that_does_not_run_has_not_started(state: dict[str, Any]) -> None:
    assert not parse_pod(pod(state=state), "engine", None).is_started


def test_new_pod_without_a_status_has_not_started() -> None:
    manifest = {key: value for key, value in pod().items() if key != "status"}
    found = parse_pod(manifest, "engine", None)
    assert (found.is_started, found.is_ready, found.failure) == (False, False, None)


def test_crash_loop_is_a_failure() -> None:
    state = {"started": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    assert parse_pod(pod(state=state), "engine", None).failure == "CrashLoopBackOff"


def test_ordinary_start_is_no_failure() -> None:
    state = {"started": False, "state": {"waiting": {"reason": "ContainerCreating"}}}
    assert parse_pod(pod(state=state), "engine", None).failure is None


CRASH = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


@pytest.mark.parametrize(
    "state",
    [
        {"started": False, "state": CRASH},
        {
            "started": False,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": CRASH,
        },
        {"started": False, "state": {"running": {}}, "lastState": CRASH},
    ],
    ids=["ended", "held back", "tries again"],
)
def test_crash_loop_reads_the_same_in_all_its_phases(state: dict[str, Any]) -> None:
    assert parse_pod(pod(state=state), "engine", None).failure == (
        "ended with exit status 137 (OOMKilled)"
    )


def test_container_that_has_started_after_a_crash_is_no_failure() -> None:
    state = {"started": True, "state": {"running": {}}, "lastState": CRASH}
    assert parse_pod(pod(state=state), "engine", None).failure is None


def test_container_that_ended_with_0_is_no_failure() -> None:
    state = {"started": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    assert parse_pod(pod(state=state), "engine", None).failure is None


def test_init_container_that_fails_is_a_failure() -> None:
    manifest = pod(state={"state": {"waiting": {"reason": "PodInitializing"}}})
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    manifest["status"]["initContainerStatuses"] = [{"name": "fetch", "state": waiting}]
    found = parse_pod(manifest, "engine", None)
    assert found.failure == "init container fetch: ImagePullBackOff"


def test_reason_why_a_pod_is_unschedulable_has_no_number() -> None:
    manifest = pod()
    message = (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint "
        "{pool: cpu}. preemption: 0/3 nodes are available: 3 No preemption victims found."
    )
    unscheduled = {"status": "False", "reason": "Unschedulable", "message": message}
    manifest["status"]["conditions"] = [{"type": "PodScheduled", **unscheduled}]
    assert parse_pod(manifest, "engine", None).unschedulable == (
        "Unschedulable: Insufficient nvidia.com/gpu, node(s) had untolerated taint {pool: cpu}"
    )


@pytest.mark.parametrize("lost", ["env", "volumeMounts"])
def test_template_that_lost_a_part_of_the_settings_is_seen(lost: str) -> None:
    (engine,) = TEMPLATE["spec"]["containers"]
    partial = {key: value for key, value in engine.items() if key != lost}
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "containers": [partial]}}
    assert parse_target(stateful_set(), "engine").mounts_settings
    assert not parse_target(stateful_set(template=template), "engine").mounts_settings
    assert not parse_pod({**pod(), "spec": template["spec"]}, "engine", None).mounts_settings


def test_template_with_the_settings_elsewhere_is_complete() -> None:
    engine = {
        "name": "engine",
        "env": [{"name": "KVREG_CONFIG_FILE", "value": "/etc/other/settings.json"}],
        "volumeMounts": [{"name": "kvreg-profile", "mountPath": "/etc/other"}],
    }
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "containers": [engine]}}
    assert parse_target(stateful_set(template=template), "engine").mounts_settings


def test_pod_that_is_being_deleted_is_terminating() -> None:
    manifest = pod(deletionTimestamp="2026-11-30T00:00:00Z")
    assert parse_pod(manifest, "engine", None).is_terminating


def test_pods_of_others_are_left_out() -> None:
    observed = read(pods=[pod("chat-0"), pod("chat-1", owner="uid-of-another")])
    assert [found.name for found in observed.pods] == ["chat-0"]


def test_answers_of_engines_go_to_their_pods() -> None:
    observed = read(pods=[pod("chat-0"), pod("chat-1")], reports={"uid-of-chat-1": REPORT})
    assert [found.engine for found in observed.pods] == [None, ENGINE]


def test_other_profile_of_the_target_is_seen() -> None:
    assert read(others=[RIVAL]).others == (RIVAL,)


def test_profile_is_not_its_own_rival() -> None:
    assert read(others=[PROFILE.metadata]).others == ()


def test_missing_target_still_shows_rivals() -> None:
    observed = read(target=None, others=[RIVAL])
    assert observed == Observation(PROFILE, target=None, others=(RIVAL,))
