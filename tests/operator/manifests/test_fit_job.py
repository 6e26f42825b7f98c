"""The Job that computes whether a profile fits, and the plans that follow from its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operator.objects import (
    FITS,
    NOW_S,
    TARGET,
    TOO_LARGE,
    desire,
    hash_of,
    make_pod,
    make_profile,
    make_target,
    observe,
    plan_for,
    statuses,
    unstarted_pod,
)

from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.manifests.config_map import config_map_name
from kvreg_operator.manifests.stateful_set import build_template_patch
from kvreg_operator.observe.fit_answer import parse_fit_job
from kvreg_operator.plan.actions import (
    ApplyConfigMap,
    DeleteConfigMap,
    DeleteFitJob,
    DeletePod,
    PatchTemplate,
    RunFitJob,
)
from kvreg_operator.plan.observation import Fit, FitJob, Observation, Target
from kvreg_operator.plan.planning import Plan

OLD = make_profile(registryEntries=1)
NEW = make_profile(generation=2, registryEntries=4, currentState="Drop", anchors=3)
ENGINE = {
    "name": "engine",
    "image": "engine:1",
    "imagePullPolicy": "IfNotPresent",
    "command": ["kvreg"],
    "args": ["serve"],
    "ports": [{"name": "http", "containerPort": 8000}],
    "env": [
        {"name": "KVREG_TP", "value": "2"},
        {"name": "KVREG_CONFIG_FILE", "value": "/etc/kvreg/profile/settings.json"},
    ],
    "envFrom": [{"configMapRef": {"name": "engine"}}],
    "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "64Gi"}},
    "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}},
    "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    "securityContext": {"runAsNonRoot": True},
    "volumeMounts": [
        {"name": "models", "mountPath": "/models"},
        {"name": "kvreg-profile", "mountPath": "/etc/kvreg/profile"},
    ],
}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": TARGET}, "annotations": {"kvreg.dev/settings-hash": "abc"}},
    "spec": {
        "serviceAccountName": "engine",
        "nodeSelector": {"pool": "v100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"runAsUser": 1000},
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}},
        },
        "terminationGracePeriodSeconds": 600,
        "initContainers": [{"name": "fetch"}],
        "containers": [{"name": "sidecar", "image": "other:1"}, ENGINE],
        "volumes": [
            {"name": "models", "hostPath": {"path": "/models"}},
            {"name": "kvreg-profile", "configMap": {"name": "chat-profile-abc"}},
        ],
    },
}


def target(**changes: Any) -> Target:
    return make_target(None, 1, **{"template": TEMPLATE, **changes})


def job_name(profile: KVRegistryProfile = NEW, of: Target | None = None) -> str:
    name: str = desire(profile, of or make_target(OLD, 1)).fit_job["metadata"]["name"]
    return name


def job(answer: Fit | None = None, failure: str | None = None) -> FitJob:
    return FitJob(job_name(), answer, failure)


def down(*jobs: FitJob, **changes: Any) -> Observation:
    """Observe a target whose only pod crashes with other settings."""
    pod = unstarted_pod(0, OLD, failure="CrashLoopBackOff")
    return observe(OLD, pod, fit_jobs=jobs, **changes)


def kinds(planned: Plan) -> list[type]:
    return [type(action) for action in planned.actions]


def test_job_is_the_engine_s_container_without_what_serves() -> None:
    labels = {"app.kubernetes.io/managed-by": "kvreg-operator", "kvreg.dev/target": TARGET}
    manifest = desire(NEW, target()).fit_job
    name = manifest["metadata"].pop("name")
    assert manifest == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": "serving",
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "name": TARGET,
                    "uid": "uid-of-target",
                }
            ],
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": 120,
            "ttlSecondsAfterFinished": 86400,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "engine",
                    "nodeSelector": {"pool": "v100"},
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "imagePullSecrets": [{"name": "registry"}],
                    "securityContext": {"runAsUser": 1000},
                    "affinity": {
                        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}
                    },
                    "restartPolicy": "Never",
                    "enableServiceLinks": False,
                    "containers": [
                        {
                            "name": "fit",
                            "image": "engine:1",
                            "imagePullPolicy": "IfNotPresent",
                            "command": [
                                "sh",
                                "-c",
                                'exec kvreg plan --json "$@" > /dev/termination-log',
                                "kvreg",
                            ],
                            "args": [
                                *("--lanes", "1"),
                                *("--entries", "4"),
                                *("--current-state", "drop"),
                                *("--anchors", "3"),
                            ],
                            "env": [{"name": "KVREG_TP", "value": "2"}],
                            "envFrom": [{"configMapRef": {"name": "engine"}}],
                            "resources": {
                                "requests": {"cpu": "100m", "memory": "128Mi"},
                                "limits": {"memory": "512Mi"},
                            },
                            "securityContext": {"runAsNonRoot": True},
                            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "FallbackToLogsOnError",
                        }
                    ],
                    "volumes": [{"name": "models", "hostPath": {"path": "/models"}}],
                },
            },
        },
    }
    assert name.startswith("chat-fit-")


def test_volume_claims_of_the_pods_become_empty_volumes() -> None:
    pod_spec = desire(NEW, target(claims=("cache",))).fit_job["spec"]["template"]["spec"]
    assert pod_spec["volumes"][-1] == {"name": "cache", "emptyDir": {}}


def test_job_of_the_longest_target_name_has_a_valid_name() -> None:
    long = make_profile(targetRef={"name": "x" * 52})
    assert len(job_name(long)) == 63


def test_name_changes_with_the_inputs() -> None:
    other = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "nodeSelector": {"pool": "a100"}}}
    names = {
        job_name(NEW, target()),
        job_name(OLD, target()),
        job_name(NEW, target(template=other)),
        job_name(NEW, target(uid="another")),
    }
    assert len(names) == 4


def test_name_does_not_change_with_the_operator_s_own_fields_or_the_rollout() -> None:
    bare: dict[str, Any] = {"spec": {"containers": [{"name": "engine", "image": "engine:1"}]}}
    patch = build_template_patch(
        namespace="serving", target_name=TARGET, container="engine", settings_hash="abc"
    )["spec"]["template"]
    engine = {**bare["spec"]["containers"][0], **patch["spec"]["containers"][0]}
    patched = {**patch, "spec": {**patch["spec"], "containers": [engine]}}
    paused = make_profile(
        registryEntries=4, currentState="Drop", anchors=3, rollout={"paused": True}
    )
    assert job_name(NEW, target(template=bare)) == job_name(paused, target(template=patched))


def ended(message: str, exit_code: int = 0, job: str = "chat-fit-1") -> dict[str, Any]:
    terminated = {"exitCode": exit_code, "message": message}
    return {
        "metadata": {
            "name": "chat-fit-1-x",
            "labels": {"batch.kubernetes.io/job-name": job},
        },
        "status": {"containerStatuses": [{"name": "fit", "state": {"terminated": terminated}}]},
    }


def job_manifest(condition: str | None = None, reason: str = "") -> dict[str, Any]:
    conditions = [] if condition is None else [{"type": condition, "status": "True"}]
    for each in conditions:
        each["reason"] = reason
    return {"metadata": {"name": "chat-fit-1"}, "status": {"conditions": conditions}}


ANSWER = {"fits": False, "required_bytes": 3, "available_bytes": 2, "short_by_bytes": 1}


@pytest.mark.parametrize("condition", [None, "Failed", "Complete"])
def test_answer_counts_however_the_job_ended(condition: str | None) -> None:
    text = json.dumps({**ANSWER, "pages": 7})
    read = parse_fit_job(job_manifest(condition), [ended(text, exit_code=1)])
    assert read == FitJob("chat-fit-1", Fit(False, 3, 2, 1), None)


def test_job_that_runs_has_neither_answer_nor_failure() -> None:
    assert parse_fit_job(job_manifest(), []) == FitJob("chat-fit-1", None, None)


def test_job_that_could_not_run_says_why() -> None:
    read = parse_fit_job(job_manifest("Failed", "DeadlineExceeded"), [])
    assert read.failure == "DeadlineExceeded"


def test_failed_job_shows_its_termination_message() -> None:
    pod = ended("kvreg: a plan for cards needs --gpu-memory-gib\n", exit_code=2)
    read = parse_fit_job(job_manifest("Failed", "BackoffLimitExceeded"), [pod])
    assert read.failure == "BackoffLimitExceeded: kvreg: a plan for cards needs --gpu-memory-gib"


def test_pod_of_another_job_is_ignored() -> None:
    other = ended(json.dumps(ANSWER), job="chat-fit-2")
    assert parse_fit_job(job_manifest(), [other]).answer is None


def test_script_leaves_the_engine_s_own_answer(tmp_path: Path) -> None:
    pod_spec = desire(NEW, make_target(OLD, 1)).fit_job["spec"]["template"]["spec"]
    (container,) = pod_spec["containers"]
    path = tmp_path / "answer"
    command = [part.replace("/dev/termination-log", str(path)) for part in container["command"]]
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([*command, *container["args"]], check=True, timeout=60, env=environment)
    read = parse_fit_job(job_manifest("Complete"), [ended(path.read_text())])
    assert read.answer is not None
    assert read.answer.fits
    # What the kubelet reports at most.
    assert path.stat().st_size < 4096


# Plans.


def test_where_no_engine_serves_a_job_computes_the_fit_first() -> None:
    planned = plan_for(NEW, down(), NOW_S)
    (action,) = planned.actions
    assert isinstance(action, RunFitJob)
    assert action.name == job_name()
    assert planned.status.waiting_for is not None
    assert planned.status.waiting_for.reason == "FitUnknown"
    assert statuses(planned.status)["Progressing"] == ("True", "Rolling")


def test_target_without_any_pod_needs_a_job() -> None:
    observed = replace(observe(OLD), target=make_target(OLD, 0))
    assert kinds(plan_for(NEW, observed, NOW_S)) == [RunFitJob]


def test_job_that_runs_is_waited_for() -> None:
    planned = plan_for(NEW, down(job()), NOW_S)
    assert planned.actions == ()
    assert planned.status.waiting_for is not None
    assert planned.status.waiting_for.reason == "FitUnknown"


def test_job_that_reports_a_fit_continues_the_rollout() -> None:
    assert kinds(plan_for(NEW, down(job(FITS)), NOW_S)) == [ApplyConfigMap, PatchTemplate]


def test_job_that_reports_no_fit_refuses_the_profile_untouched() -> None:
    planned = plan_for(NEW, down(job(TOO_LARGE)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["Accepted"] == ("False", "DoesNotFit")


def test_refusal_by_a_job_is_at_rest() -> None:
    observed = down(job(TOO_LARGE))
    status = plan_for(NEW, observed, NOW_S).status
    refused = NEW.model_copy(update={"status": status})
    assert plan_for(refused, observed, NOW_S + 3600) == Plan(refused, (), status, ())


def test_job_without_an_answer_is_an_event_and_the_rollout_continues() -> None:
    planned = plan_for(NEW, down(job(failure="DeadlineExceeded")), NOW_S)
    assert kinds(planned) == [ApplyConfigMap, PatchTemplate]
    assert ("Warning", "FitUnknown") in {(e.type, e.reason) for e in planned.events}
    progressing = planned.status.find_condition("Progressing")
    assert progressing is not None
    assert "DeadlineExceeded" in progressing.message


def test_report_of_an_engine_overrides_a_job() -> None:
    observed = observe(OLD, make_pod(0, OLD), fit_jobs=(job(TOO_LARGE),))
    assert PatchTemplate in kinds(plan_for(NEW, observed, NOW_S))


def test_job_does_not_replace_the_report_of_a_pod_that_serves() -> None:
    planned = plan_for(NEW, observe(OLD, make_pod(0, OLD, engine=None)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "FitUnknown")


def test_revert_out_of_a_crash_loop_waits_for_no_job() -> None:
    pod = unstarted_pod(0, NEW, failure="CrashLoopBackOff")
    both = frozenset({config_map_name(TARGET, hash_of(each)) for each in (OLD, NEW)})
    planned = plan_for(OLD, observe(NEW, pod, config_maps=both), NOW_S)
    assert kinds(planned) == [PatchTemplate]


def test_earlier_settings_are_kept_while_the_new_ones_do_not_serve() -> None:
    pod = unstarted_pod(0, NEW, failure="CrashLoopBackOff")
    both = frozenset({config_map_name(TARGET, hash_of(each)) for each in (OLD, NEW)})
    assert plan_for(NEW, observe(NEW, pod, config_maps=both), NOW_S).actions == ()
    served = plan_for(NEW, observe(NEW, make_pod(0, NEW), config_maps=both), NOW_S)
    assert kinds(served) == [DeleteConfigMap]


def test_dead_pod_of_accepted_settings_is_replaced() -> None:
    pod = unstarted_pod(0, OLD)
    observed = observe(NEW, pod, fit_jobs=(job(FITS),))
    assert kinds(plan_for(NEW, observed, NOW_S)) == [DeletePod]


@pytest.mark.parametrize("answer", [None, FITS, TOO_LARGE])
def test_job_for_an_earlier_edit_is_removed(answer: Fit | None) -> None:
    earlier = FitJob("chat-fit-earlier", TOO_LARGE, None)
    planned = plan_for(NEW, down(job(answer), earlier), NOW_S)
    assert planned.actions[-1] == DeleteFitJob("chat-fit-earlier")


def test_answer_is_removed_once_the_profile_is_served() -> None:
    observed = observe(NEW, make_pod(0, NEW), fit_jobs=(job(FITS),))
    assert plan_for(NEW, observed, NOW_S).actions == (DeleteFitJob(job_name()),)


def test_paused_profile_creates_no_job() -> None:
    paused = make_profile(registryEntries=4, rollout={"paused": True})
    assert plan_for(paused, down(FitJob("chat-fit-earlier", None, None)), NOW_S).actions == ()


def test_junior_profile_removes_nothing() -> None:
    elder = make_profile("elder", created_s=NOW_S - 7200)
    observed = down(FitJob("chat-fit-of-the-elder", None, None), others=(elder.metadata,))
    assert plan_for(NEW, observed, NOW_S).actions == ()
