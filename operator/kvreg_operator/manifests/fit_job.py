"""The Job that computes whether a profile fits, for a target without a serving engine to ask.

Owns how the Job is built from the target's own pod template. The arithmetic is the engine's: the
Job runs ``kvreg plan`` of the same image, with the settings of the profile as flags. It requests no
GPU and little else, so that it runs beside pods that hold all of them and do not start.
"""

from __future__ import annotations

import hashlib
import json

from kvreg_operator.manifests.ownership import Manifest, build_ownership
from kvreg_operator.manifests.settings_document import SettingsDocument
from kvreg_operator.manifests.stateful_set import CONFIG_FILE_VARIABLE, MOUNT_PATH, VOLUME_NAME

_MAX_NAME_LENGTH = 63
_HASH_LENGTH = 10
_ANSWER_PATH = "/dev/termination-log"
# The kubelet reports up to 4096 bytes of that file; an answer has about 600.
_SCRIPT = f'exec kvreg plan --json "$@" > {_ANSWER_PATH}'
# The image is on the node already, as all pods of the target use it; reading a config takes
# seconds.
_DEADLINE_S = 120
# While a profile is refused its Job stays, or the operator would create it again and again.
_KEPT_FOR_S = 24 * 3600

# Measured: planning loads no torch and takes 41 MB.
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}

# The settings that change how much memory a profile needs, in the order of their flags.
_SETTINGS = ("lanes", "entries", "current_state", "anchors")
_SHARED_POD_FIELDS = (
    "automountServiceAccountToken", "imagePullSecrets", "nodeSelector", "securityContext",
    "serviceAccountName", "tolerations",
)  # fmt: skip
_SHARED_CONTAINER_FIELDS = ("envFrom", "image", "imagePullPolicy", "securityContext")


def build_fit_job(
    *,
    namespace: str,
    target_name: str,
    target_uid: str,
    container: str,
    template: Manifest,
    claims: tuple[str, ...],
    document: SettingsDocument,
) -> Manifest:
    """Build the Job for the settings of ``document`` and the engine in ``container``.

    Its name holds a digest of its inputs, so that other inputs make another Job. What the operator
    itself writes into the template is no input: one roll runs one Job.
    """
    pod_spec = _build_pod_spec(container, template.get("spec", {}), claims, document)
    content = json.dumps([target_uid, pod_spec], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:_HASH_LENGTH]
    head = target_name[: _MAX_NAME_LENGTH - len("-fit-") - _HASH_LENGTH].rstrip("-")
    ownership = build_ownership(target_name, target_uid)
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
            # Without the labels of the target: a selector for its pods must not match this one.
            "template": {"metadata": {"labels": ownership["labels"]}, "spec": pod_spec},
        },
    }


def _build_pod_spec(
    container: str, template_spec: Manifest, claims: tuple[str, ...], document: SettingsDocument
) -> Manifest:
    containers: list[Manifest] = template_spec.get("containers", [])
    (engine,) = (each for each in containers if each["name"] == container)
    pod_spec = {name: template_spec[name] for name in _SHARED_POD_FIELDS if name in template_spec}
    # The nodes that the pods may run on, without their anti-affinity to one another.
    if (nodes := (template_spec.get("affinity") or {}).get("nodeAffinity")) is not None:
        pod_spec["affinity"] = {"nodeAffinity": nodes}
    volumes = [each for each in template_spec.get("volumes") or [] if each["name"] != VOLUME_NAME]
    # The claims belong to pods that may not exist yet, or bind them to another node.
    volumes += [{"name": name, "emptyDir": {}} for name in claims]
    return {
        **pod_spec,
        "restartPolicy": "Never",
        # The variables of a Service named kvreg would be settings that the engine does not know.
        "enableServiceLinks": False,
        "containers": [_build_container(engine, document)],
        "volumes": volumes,
    }


def _build_container(engine: Manifest, document: SettingsDocument) -> Manifest:
    container = {name: engine[name] for name in _SHARED_CONTAINER_FIELDS if name in engine}
    return {
        **container,
        "name": "fit",
        "command": ["sh", "-c", _SCRIPT, "kvreg"],
        "args": _build_flags(document),
        "env": [each for each in engine.get("env") or [] if each["name"] != CONFIG_FILE_VARIABLE],
        "resources": _RESOURCES,
        "volumeMounts": [
            each for each in engine.get("volumeMounts") or [] if each["mountPath"] != MOUNT_PATH
        ],
        "terminationMessagePath": _ANSWER_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _build_flags(document: SettingsDocument) -> list[str]:
    settings = dict(document.settings)
    return [
        part
        for name in _SETTINGS
        if name in settings
        for part in (f"--{name.replace('_', '-')}", str(settings[name]))
    ]
