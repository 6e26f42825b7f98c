"""From objects of the API server, as it writes them, to what was observed.

Owns which fields of a StatefulSet and of its pods are read, and what they mean when they are
missing. It asks nobody anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime

from kvreg_operator.crd.profile import KVRegistryProfile, Metadata
from kvreg_operator.manifests.fit_job import read_fit_job
from kvreg_operator.manifests.rendering import (
    CONFIG_FILE_VARIABLE,
    SETTINGS_HASH_ANNOTATION,
    VOLUME_NAME,
    Manifest,
)
from kvreg_operator.plan.observation import EngineState, Observed, Pod, Target, UpdateStrategy

REVISION_LABEL = "controller-revision-hash"
# What a container waits for in the ordinary course of a start.
_ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
_COUNT = re.compile(r"\b\d+ ")


def read_observed(
    profile: KVRegistryProfile,
    *,
    target: Manifest | None,
    pods: Iterable[Manifest],
    config_maps: Iterable[Manifest],
    jobs: Iterable[Manifest] = (),
    engines: Mapping[str, EngineState],
    others: Iterable[Metadata],
) -> Observed:
    """Put together what was read for one profile.

    ``pods`` holds those of the target and of its ``jobs``, and may hold others. ``engines`` is by
    the uid of the pod. ``others`` may hold the profile itself.
    """
    pods = tuple(pods)
    rivals = tuple(other for other in others if other.uid != profile.metadata.uid)
    if target is None:
        return Observed(target=None, others=rivals)
    uid, container = target["metadata"]["uid"], profile.spec.target_ref.container
    return Observed(
        target=read_target(target, container),
        pods=tuple(
            read_pod(pod, container, engines.get(pod["metadata"]["uid"]))
            for pod in pods
            if is_controlled_by(pod, uid)
        ),
        # Those of an earlier StatefulSet of that name are on their way out with it.
        config_maps=frozenset(
            item["metadata"]["name"] for item in config_maps if _is_owned_by(item, uid)
        ),
        others=rivals,
        fit_jobs=tuple(read_fit_job(job, pods) for job in jobs),
    )


def read_target(manifest: Manifest, container: str) -> Target:
    """Read a StatefulSet whose engine is in ``container``."""
    spec, status, metadata = manifest["spec"], manifest.get("status", {}), manifest["metadata"]
    template = spec["template"]
    declared = spec.get("updateStrategy", {}).get("type", "RollingUpdate")
    strategy: UpdateStrategy = "OnDelete" if declared == "OnDelete" else "RollingUpdate"
    return Target(
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata["generation"],
        observed_generation=status.get("observedGeneration", 0),
        replicas=spec.get("replicas", 1),
        strategy=strategy,
        containers=tuple(container["name"] for container in template["spec"]["containers"]),
        update_revision=status.get("updateRevision"),
        settings_hash=_settings_hash(template.get("metadata", {})),
        config_map=_mounted_config_map(template["spec"]),
        first_ordinal=spec.get("ordinals", {}).get("start", 0),
        template=template,
        claims=tuple(each["metadata"]["name"] for each in spec.get("volumeClaimTemplates") or []),
        is_wired=_is_wired(template["spec"], container),
    )


def read_pod(manifest: Manifest, container: str, engine: EngineState | None) -> Pod:
    """Read a pod of a StatefulSet, beside the answer of its engine, if there is one."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    state = _container_status(manifest, container)
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ordinal=int(metadata["name"].rpartition("-")[2]),
        revision=metadata.get("labels", {}).get(REVISION_LABEL),
        settings_hash=_settings_hash(metadata),
        config_map=_mounted_config_map(manifest["spec"]),
        is_started=has_started(manifest, container),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_terminating="deletionTimestamp" in metadata,
        engine=engine,
        failure=_init_failure(status) or _failure(state),
        unplaced=_unplaced(conditions.get("PodScheduled", {})),
        ends_at_s=_seconds(metadata.get("deletionTimestamp")),
        is_wired=_is_wired(manifest["spec"], container),
    )


def has_started(manifest: Manifest, container: str) -> bool:
    """Say whether a container of a pod runs and has passed its startup probe."""
    state = _container_status(manifest, container)
    return bool(state.get("started")) and "running" in state.get("state", {})


def _container_status(manifest: Manifest, container: str) -> Manifest:
    states: list[Manifest] = (manifest.get("status") or {}).get("containerStatuses") or []
    return next((each for each in states if each["name"] == container), {})


def find_engine_url(manifest: Manifest, container: str, port_name: str = "http") -> str | None:
    """Return where the engine of a pod listens, or None while it has no address or no such port."""
    address: str | None = (manifest.get("status") or {}).get("podIP")
    engine = _find_container(manifest["spec"], container)
    ports = [p["containerPort"] for p in engine.get("ports") or [] if p.get("name") == port_name]
    if not address or not ports:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{ports[0]}"


def _find_container(pod_spec: Manifest, name: str) -> Manifest:
    containers: list[Manifest] = pod_spec["containers"]
    return next((each for each in containers if each["name"] == name), {})


def _settings_hash(metadata: Manifest) -> str | None:
    annotations: dict[str, str] = metadata.get("annotations") or {}
    return annotations.get(SETTINGS_HASH_ANNOTATION)


def _mounted_config_map(pod_spec: Manifest) -> str | None:
    for volume in pod_spec.get("volumes") or []:
        if volume["name"] == VOLUME_NAME:
            name: str | None = volume.get("configMap", {}).get("name")
            return name
    return None


def _is_wired(pod_spec: Manifest, container: str) -> bool:
    """Say whether the container mounts the settings and is told to read them, wherever that is."""
    engine = _find_container(pod_spec, container)
    mounts = engine.get("volumeMounts") or []
    paths = [each["mountPath"] for each in mounts if each["name"] == VOLUME_NAME]
    told = [
        e.get("value") or "" for e in engine.get("env") or [] if e["name"] == CONFIG_FILE_VARIABLE
    ]
    return any(file.startswith(f"{path}/") for file in told for path in paths)


def _failure(container_status: Manifest) -> str | None:
    """Say what keeps a container from running, in the same words all through a crash loop."""
    state, last = container_status.get("state") or {}, container_status.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    has_run = "running" in state and container_status.get("started")
    if ended.get("exitCode") and not has_run:
        return f"ended with exit status {ended['exitCode']} ({ended.get('reason') or 'Error'})"
    reason: str | None = (state.get("waiting") or {}).get("reason")
    return None if reason in _ORDINARY_WAITS else reason


def _init_failure(status: Manifest) -> str | None:
    for each in status.get("initContainerStatuses") or []:
        # One that runs is at work, whatever its earlier attempts came to.
        is_running = "running" in (each.get("state") or {})
        if not is_running and (failure := _failure(each)) is not None:
            return f"init container {each['name']}: {failure}"
    return None


def _unplaced(condition: Manifest) -> str | None:
    """Say why no node takes a pod, without the numbers of nodes, which come and go."""
    if condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return None
    why = str(condition.get("message") or "").partition(": ")[2].partition(". ")[0]
    return f"Unschedulable: {_COUNT.sub('', why).rstrip('.') or 'no node takes it'}"


def _seconds(timestamp: str | None) -> float | None:
    return None if timestamp is None else datetime.fromisoformat(timestamp).timestamp()


def _is_owned_by(manifest: Manifest, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in manifest["metadata"].get("ownerReferences") or [])


def is_controlled_by(manifest: Manifest, uid: str) -> bool:
    """Say whether an object belongs to the controller of that uid."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == uid and owner.get("controller") for owner in owners)
