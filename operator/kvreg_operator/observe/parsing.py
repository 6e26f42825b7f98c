"""Objects of the API server, parsed to the values of an observation.

Owns which fields of a StatefulSet and of its pods are read, and what they mean when they are
missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from kvreg_operator.clients.engine import EngineReport
from kvreg_operator.crd.profile import (
    CurrentState,
    EffectiveSettings,
    KVRegistryProfile,
    Metadata,
    ProfileSpec,
    ProfileStatus,
)
from kvreg_operator.manifests.stateful_set import (
    CONFIG_FILE_VARIABLE,
    SETTINGS_HASH_ANNOTATION,
    VOLUME_NAME,
)
from kvreg_operator.observe.containers import (
    Manifest,
    find_container,
    find_failure,
    find_init_failure,
    find_status,
    has_started,
)
from kvreg_operator.observe.fit_answer import parse_fit_job
from kvreg_operator.plan.observation import (
    EngineState,
    Fit,
    Observation,
    Pod,
    Target,
    UpdateStrategy,
)

REVISION_LABEL = "controller-revision-hash"
_CURRENT_STATES: dict[Literal["keep", "drop"], CurrentState] = {"keep": "Keep", "drop": "Drop"}
_COUNT = re.compile(r"\b\d+ ")


def build_observation(
    profile: KVRegistryProfile,
    *,
    target: Manifest | None,
    pods: Iterable[Manifest],
    config_maps: Iterable[Manifest],
    jobs: Iterable[Manifest] = (),
    reports: Mapping[str, EngineReport],
    others: Iterable[Metadata],
) -> Observation:
    """Combine what was read for one profile.

    ``pods`` holds those of the target and of its ``jobs``, and may hold others. ``reports`` are by
    the uid of the pod. ``others`` may hold the profile itself.
    """
    pods = tuple(pods)
    rivals = tuple(other for other in others if other.uid != profile.metadata.uid)
    if target is None:
        return Observation(profile, target=None, others=rivals)
    uid, container = target["metadata"]["uid"], profile.spec.target_ref.container
    return Observation(
        profile,
        target=parse_target(target, container),
        pods=tuple(
            parse_pod(pod, container, reports.get(pod["metadata"]["uid"]))
            for pod in pods
            if is_controlled_by(pod, uid)
        ),
        # Those of a deleted StatefulSet with this name are being garbage-collected.
        config_maps=frozenset(
            item["metadata"]["name"] for item in config_maps if _is_owned_by(item, uid)
        ),
        others=rivals,
        fit_jobs=tuple(parse_fit_job(job, pods) for job in jobs),
    )


def parse_profile(manifest: Manifest) -> KVRegistryProfile:
    """Parse a profile. A status that cannot be parsed counts as none and is written again.

    Raises:
        ValidationError: The spec cannot be parsed, as with a value of a newer definition.
    """
    metadata = Metadata.model_validate(manifest.get("metadata"))
    spec = ProfileSpec.model_validate(manifest.get("spec"))
    try:
        status = ProfileStatus.model_validate(manifest.get("status") or {})
    except ValidationError:
        status = ProfileStatus()
    return KVRegistryProfile(metadata=metadata, spec=spec, status=status)


def parse_target(manifest: Manifest, container: str) -> Target:
    """Parse a StatefulSet whose engine is in ``container``."""
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
        mounts_settings=_mounts_settings(template["spec"], container),
    )


def parse_pod(manifest: Manifest, container: str, report: EngineReport | None) -> Pod:
    """Parse a pod of a StatefulSet, with the report of its engine if there is one."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    state = find_status(manifest, container)
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
        engine=None if report is None else parse_report(report),
        failure=find_init_failure(status) or find_failure(state),
        unschedulable=_unschedulable(conditions.get("PodScheduled", {})),
        ends_at_s=_seconds(metadata.get("deletionTimestamp")),
        mounts_settings=_mounts_settings(manifest["spec"], container),
    )


def parse_report(report: EngineReport) -> EngineState:
    """Parse the report of an engine into the terms of the profile."""
    registry = report.registry
    profile = registry.profile
    return EngineState(
        effective=EffectiveSettings(
            lanes=profile.lanes,
            registry_entries=profile.entries,
            current_state=_CURRENT_STATES[profile.current_state],
            anchors=profile.anchors,
            max_context_tokens=profile.max_context_tokens,
            model=profile.model,
        ),
        running=registry.running,
        queued=registry.queued,
        is_draining=registry.is_draining,
        fit=Fit(**report.fit.model_dump()),
    )


def settings_to_fit(spec: ProfileSpec) -> dict[str, object]:
    """Return the settings that decide whether a profile fits, as the engine names them."""
    settings: dict[str, object] = {
        "lanes": spec.lanes,
        "entries": spec.registry_entries,
        "current_state": spec.current_state.lower(),
    }
    if spec.anchors is not None:
        settings["anchors"] = spec.anchors
    return settings


def _settings_hash(metadata: Manifest) -> str | None:
    annotations: dict[str, str] = metadata.get("annotations") or {}
    return annotations.get(SETTINGS_HASH_ANNOTATION)


def _mounted_config_map(pod_spec: Manifest) -> str | None:
    for volume in pod_spec.get("volumes") or []:
        if volume["name"] == VOLUME_NAME:
            name: str | None = volume.get("configMap", {}).get("name")
            return name
    return None


def _mounts_settings(pod_spec: Manifest, container: str) -> bool:
    """Say whether the container mounts the settings and reads them, at any path."""
    engine = find_container(pod_spec, container)
    mounts = engine.get("volumeMounts") or []
    paths = [each["mountPath"] for each in mounts if each["name"] == VOLUME_NAME]
    files = [
        e.get("value") or "" for e in engine.get("env") or [] if e["name"] == CONFIG_FILE_VARIABLE
    ]
    return any(file.startswith(f"{path}/") for file in files for path in paths)


def _unschedulable(condition: Manifest) -> str | None:
    """Say why no node takes a pod, without the numbers of nodes, which change all the time."""
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
