"""The Job that computes whether a profile fits, where no engine serves that could be asked.

Owns how it is built from the target's own pod template, and how its answer is read. The arithmetic
is the engine's: the Job runs ``kvreg plan`` of the same image, with the profile's values as flags.
It asks for no card and for little else, so that it runs beside pods that hold everything and do not
start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kvreg_operator.crd.profile import KVRegistryProfile, ProfileSpec
from kvreg_operator.manifests.rendering import (
    CONFIG_FILE_VARIABLE,
    MOUNT_PATH,
    VOLUME_NAME,
    Manifest,
    build_ownership,
)
from kvreg_operator.plan.observation import Fit, FitJob, Target

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"

_MAX_NAME_LENGTH = 63
_HASH_LENGTH = 10
_ANSWER_PATH = "/dev/termination-log"
# The kubelet reports up to 4096 bytes of that file; an answer has about 600.
_SCRIPT = f'exec kvreg plan --json "$@" > {_ANSWER_PATH}'
# An image that every pod of the target uses is on the node; reading a config takes seconds.
_DEADLINE_S = 120
# The answer of a refused profile has to stay, or it would be asked for again and again.
_KEPT_FOR_S = 24 * 3600

# Measured: planning loads no torch and takes 41 MB.
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}

_SHARED_POD_FIELDS = (
    "automountServiceAccountToken", "imagePullSecrets", "nodeSelector", "securityContext",
    "serviceAccountName", "tolerations",
)  # fmt: skip
_SHARED_CONTAINER_FIELDS = ("envFrom", "image", "imagePullPolicy", "securityContext")


_FIT = TypeAdapter(Fit)


def build_fit_job(profile: KVRegistryProfile, target: Target) -> Manifest:
    """Build the Job. Its name holds a digest of what it is asked: another question, another Job.

    What the operator itself writes into the template does not count, so that a roll asks once.
    """
    ref, namespace = profile.spec.target_ref, profile.metadata.namespace
    pod_spec = _pod_spec(profile.spec, target)
    content = json.dumps([target.uid, pod_spec], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:_HASH_LENGTH]
    head = ref.name[: _MAX_NAME_LENGTH - len("-fit-") - _HASH_LENGTH].rstrip("-")
    ownership = build_ownership(ref.name, target.uid)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{head}-fit-{digest}",
            "namespace": namespace,
            **ownership,
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": _DEADLINE_S,
            "ttlSecondsAfterFinished": _KEPT_FOR_S,
            # None of the target's own labels: what selects its pods must not select this one.
            "template": {"metadata": {"labels": ownership["labels"]}, "spec": pod_spec},
        },
    }


def _pod_spec(spec: ProfileSpec, target: Target) -> Manifest:
    template: Manifest = target.template.get("spec", {})
    containers: list[Manifest] = template.get("containers", [])
    (engine,) = (each for each in containers if each["name"] == spec.target_ref.container)
    pod_spec = {name: template[name] for name in _SHARED_POD_FIELDS if name in template}
    # Where the pods may run, but not their dislike of one another.
    if (nodes := (template.get("affinity") or {}).get("nodeAffinity")) is not None:
        pod_spec["affinity"] = {"nodeAffinity": nodes}
    volumes = [each for each in template.get("volumes") or [] if each["name"] != VOLUME_NAME]
    # The claims are those of pods, which may not exist yet, or hold them on another node.
    volumes += [{"name": name, "emptyDir": {}} for name in target.claims]
    return {
        **pod_spec,
        "restartPolicy": "Never",
        # The variables of a Service called kvreg would be settings that the engine does not know.
        "enableServiceLinks": False,
        "containers": [_container(spec, engine)],
        "volumes": volumes,
    }


def _container(spec: ProfileSpec, engine: Manifest) -> Manifest:
    container = {name: engine[name] for name in _SHARED_CONTAINER_FIELDS if name in engine}
    return {
        **container,
        "name": "fit",
        "command": ["sh", "-c", _SCRIPT, "kvreg"],
        "args": _flags(spec),
        "env": [each for each in engine.get("env") or [] if each["name"] != CONFIG_FILE_VARIABLE],
        "resources": _RESOURCES,
        "volumeMounts": [
            each for each in engine.get("volumeMounts") or [] if each["mountPath"] != MOUNT_PATH
        ],
        "terminationMessagePath": _ANSWER_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _flags(spec: ProfileSpec) -> list[str]:
    flags = ["--lanes", str(spec.lanes), "--entries", str(spec.registry_entries)]
    flags += ["--current-state", spec.current_state.lower()]
    if spec.anchors is not None:
        flags += ["--anchors", str(spec.anchors)]
    return flags


def read_fit_job(manifest: Manifest, pods: Iterable[Manifest]) -> FitJob:
    """Read a Job beside its pods; ``pods`` may hold those of others."""
    name = manifest["metadata"]["name"]
    ended = [end for pod in pods if _is_of(pod, name) and (end := _end_of(pod)) is not None]
    answer = next((each for end in ended if (each := _read_answer(end)) is not None), None)
    conditions = (manifest.get("status") or {}).get("conditions") or []
    finished = [
        each
        for each in conditions
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    ]
    failure = None
    if answer is None and finished:
        said = [finished[0].get("reason"), *(end.get("message") for end in ended)]
        failure = ": ".join(" ".join(text.split())[:200] for text in said if text) or "no answer"
    return FitJob(name, answer, failure)


def _is_of(pod: Manifest, job_name: str) -> bool:
    labels: dict[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(JOB_NAME_LABEL) == job_name


def _end_of(pod: Manifest) -> Manifest | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        end: Manifest | None = status.get("state", {}).get("terminated")
        if end is not None:
            return end
    return None


def _read_answer(end: dict[str, Any]) -> Fit | None:
    """Return the answer, whatever the exit status: a profile that does not fit ends with 1."""
    try:
        return _FIT.validate_json(end.get("message") or "")
    except ValidationError:
        return None
