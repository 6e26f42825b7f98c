"""Profiles, pods and engines for tests, with defaults for all that a test is not about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kvreg_operator.crd.profile import (
    EffectiveSettings,
    KVRegistryProfile,
    ProfileSpec,
    ProfileStatus,
)
from kvreg_operator.manifests.config_map import config_map_name
from kvreg_operator.manifests.desired_state import (
    DesiredState,
    build_desired_state,
    render_settings,
)
from kvreg_operator.plan.observation import EngineState, Fit, Observation, Pod, Target
from kvreg_operator.plan.planning import Plan, plan

NOW_S = 1_800_000_000.0
TARGET = "chat"
FITS = Fit(fits=True, required_bytes=100, available_bytes=200, short_by_bytes=0)
TEMPLATE = {"spec": {"containers": [{"name": "engine", "image": "engine:1"}]}}
TOO_LARGE = Fit(fits=False, required_bytes=300, available_bytes=200, short_by_bytes=100)


def make_profile(
    name: str = "small",
    *,
    generation: int = 1,
    created_s: float = NOW_S - 3600,
    status: ProfileStatus | None = None,
    **spec: Any,
) -> KVRegistryProfile:
    """Make a profile from fields of the spec, in camelCase."""
    asked = {"targetRef": {"name": TARGET}, "lanes": 1, "registryEntries": 2, **spec}
    profile = KVRegistryProfile.model_validate(
        {
            "metadata": {
                "name": name,
                "namespace": "serving",
                "uid": f"uid-of-{name}",
                "generation": generation,
                "creationTimestamp": datetime.fromtimestamp(created_s, UTC).isoformat(),
            },
            "spec": asked,
        }
    )
    return profile if status is None else profile.model_copy(update={"status": status})


def hash_of(profile: KVRegistryProfile) -> str:
    return render_settings(profile).hash


def effective_of(spec: ProfileSpec) -> EffectiveSettings:
    return EffectiveSettings(
        lanes=spec.lanes,
        registry_entries=spec.registry_entries,
        current_state=spec.current_state,
        anchors=2 if spec.anchors is None else spec.anchors,
        max_context_tokens=4096,
        model="reference",
    )


def make_engine(
    served: KVRegistryProfile,
    *,
    running: int = 0,
    queued: int = 0,
    is_draining: bool = False,
    fit: Fit | None = FITS,
) -> EngineState:
    return EngineState(effective_of(served.spec), running, queued, is_draining, fit)


def make_pod(ordinal: int, served: KVRegistryProfile, **changes: Any) -> Pod:
    """Make an idle pod that serves a profile, and is ready unless its engine drains."""
    engine = changes.get("engine")
    pod = Pod(
        name=f"{TARGET}-{ordinal}",
        uid=f"uid-{ordinal}",
        ordinal=ordinal,
        revision=hash_of(served),
        settings_hash=hash_of(served),
        config_map=config_map_name(TARGET, hash_of(served)),
        is_started=True,
        is_ready=engine is None or not engine.is_draining,
        is_terminating=False,
        engine=make_engine(served),
    )
    return replace(pod, **changes)


def busy_pod(ordinal: int, served: KVRegistryProfile) -> Pod:
    return make_pod(ordinal, served, engine=make_engine(served, running=1))


def unstarted_pod(ordinal: int, served: KVRegistryProfile, **changes: Any) -> Pod:
    """Make a pod whose engine loads, or crashes."""
    down: dict[str, Any] = {"is_started": False, "is_ready": False, "engine": None}
    return make_pod(ordinal, served, **down, **changes)


def make_target(served: KVRegistryProfile | None, replicas: int, **changes: Any) -> Target:
    """Make a target whose template is that of a profile, or has no settings."""
    target = Target(
        uid="uid-of-target",
        resource_version="40",
        generation=4,
        observed_generation=4,
        replicas=replicas,
        strategy="OnDelete",
        containers=("engine",),
        update_revision=None if served is None else hash_of(served),
        settings_hash=None if served is None else hash_of(served),
        config_map=None if served is None else config_map_name(TARGET, hash_of(served)),
        template=TEMPLATE,
    )
    return replace(target, **changes)


def desire(profile: KVRegistryProfile, target: Target) -> DesiredState:
    return build_desired_state(
        profile, target_uid=target.uid, template=target.template, claims=target.claims
    )


def plan_for(profile: KVRegistryProfile, observation: Observation, now_s: float) -> Plan:
    """Plan for a profile, with all else that was observed."""
    return plan(replace(observation, profile=profile), now_s)


def observe(template: KVRegistryProfile | None, *pods: Pod, **changes: Any) -> Observation:
    """Observe a target with as many replicas as there are pods, and the ConfigMaps in use."""
    used = {pod.config_map for pod in pods if pod.config_map is not None}
    target = make_target(template, len(pods))
    if target.config_map is not None:
        used.add(target.config_map)
    return replace(
        Observation(make_profile(), target=target, pods=pods, config_maps=frozenset(used)),
        **changes,
    )


def statuses(status: ProfileStatus) -> Mapping[str, tuple[str, str]]:
    """Return status and reason by type of condition."""
    return {c.type: (c.status, c.reason) for c in status.conditions}
