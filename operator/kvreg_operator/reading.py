"""From objects of the API server, as it writes them, to what was observed.

Owns which fields of a StatefulSet and of its pods are read, and what they mean when they are
missing. It asks nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvreg_operator.fit_job import read_fit_job
from kvreg_operator.observed import EngineState, Observed, Pod, Target, UpdateStrategy
from kvreg_operator.profile import KVRegistryProfile
from kvreg_operator.rendering import SETTINGS_HASH_ANNOTATION, VOLUME_NAME, Manifest

REVISION_LABEL = "controller-revision-hash"
# What a container waits for in the ordinary course of a start.
_ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing"})


def read_observed(
    profile: KVRegistryProfile,
    *,
    target: Manifest | None,
    pods: Iterable[Manifest],
    config_maps: Iterable[Manifest],
    jobs: Iterable[Manifest] = (),
    engines: Mapping[str, EngineState],
    others: Iterable[KVRegistryProfile],
) -> Observed:
    """Put together what was read for one profile.

    ``pods`` holds those of the target and of its ``jobs``, and may hold others. ``engines`` is by
    the uid of the pod. ``others`` may hold profiles of other targets, those on their way out, and
    the profile itself.
    """
    pods = tuple(pods)
    rivals = tuple(
        other
        for other in others
        if other.metadata.uid != profile.metadata.uid
        and other.metadata.namespace == profile.metadata.namespace
        and other.metadata.deletion_timestamp is None
        and other.spec.target_ref.name == profile.spec.target_ref.name
    )
    if target is None:
        return Observed(target=None, others=rivals)
    uid, container = target["metadata"]["uid"], profile.spec.target_ref.container
    return Observed(
        target=read_target(target),
        pods=tuple(
            read_pod(pod, container, engines.get(pod["metadata"]["uid"]))
            for pod in pods
            if is_controlled_by(pod, uid)
        ),
        config_maps=frozenset(item["metadata"]["name"] for item in config_maps),
        others=rivals,
        fit_jobs=tuple(read_fit_job(job, pods) for job in jobs),
    )


def read_target(manifest: Manifest) -> Target:
    """Read a StatefulSet."""
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
    )


def read_pod(manifest: Manifest, container: str, engine: EngineState | None) -> Pod:
    """Read a pod of a StatefulSet, beside the answer of its engine, if there is one."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    state = _container_status(manifest, container)
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ordinal=int(metadata["name"].rpartition("-")[2]),
        revision=metadata.get("labels", {}).get(REVISION_LABEL),
        settings_hash=_settings_hash(metadata),
        config_map=_mounted_config_map(manifest["spec"]),
        is_started=has_started(manifest, container),
        is_ready=conditions.get("Ready") == "True",
        is_terminating="deletionTimestamp" in metadata,
        engine=engine,
        failure=_failure(state),
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
    containers: list[Manifest] = manifest["spec"]["containers"]
    engine = next((each for each in containers if each["name"] == container), Manifest())
    ports = [p["containerPort"] for p in engine.get("ports") or [] if p.get("name") == port_name]
    if not address or not ports:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{ports[0]}"


def _settings_hash(metadata: Manifest) -> str | None:
    annotations: dict[str, str] = metadata.get("annotations") or {}
    return annotations.get(SETTINGS_HASH_ANNOTATION)


def _mounted_config_map(pod_spec: Manifest) -> str | None:
    for volume in pod_spec.get("volumes") or []:
        if volume["name"] == VOLUME_NAME:
            name: str | None = volume.get("configMap", {}).get("name")
            return name
    return None


def _failure(container_status: Manifest) -> str | None:
    reason: str | None = container_status.get("state", {}).get("waiting", {}).get("reason")
    return None if reason in _ORDINARY_WAITS else reason


def is_controlled_by(manifest: Manifest, uid: str) -> bool:
    """Say whether an object belongs to the controller of that uid."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == uid and owner.get("controller") for owner in owners)
