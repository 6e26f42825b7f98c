"""The next step of a roll: what to do now, or what to wait for.

Owns the order: fit, settings, template, one pod after the other. It never makes a second pod
unavailable, needs no spare GPU, and stops at every gate of ``gates``.

A pod is replaced in two steps. First its idle engine is asked to drain: it is no longer ready, and
for a moment still takes what its Service sends. Then, when the Service has forgotten it and it is
idle, the pod is deleted, so that nobody is refused who could be served elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.manifests.rendering import (
    Manifest,
    build_config_map,
    build_strategy_patch,
    build_template_patch,
)
from kvreg_operator.manifests.settings_document import SettingsDocument
from kvreg_operator.plan.actions import (
    Action,
    ApplyConfigMap,
    DeleteConfigMap,
    DeleteFitJob,
    DeletePod,
    DrainPod,
    PatchTemplate,
    RunFitJob,
    SetUpdateStrategy,
)
from kvreg_operator.plan.fleet import Fleet
from kvreg_operator.plan.gates import (
    Waiting,
    find_canary,
    find_doubt_about_fit,
    pass_gate,
    wait_for,
    wait_for_absent,
)
from kvreg_operator.plan.observation import Pod


@dataclass(frozen=True)
class Step:
    """What to do now, and what keeps the roll from going on after that.

    ``engaged_pod`` is set by a step that only prepares: the pod that is replaced next, where it
    was not seen idle. Whoever has waited for it has not waited in vain.
    """

    actions: tuple[Action, ...] = ()
    waiting: Waiting | None = None
    engaged_pod: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What a profile is rendered to: the settings of its pods, and the Job that tries them on."""

    document: SettingsDocument
    fit_job: Manifest


def next_step(profile: KVRegistryProfile, fleet: Fleet, wanted: Wanted, *, waited_s: float) -> Step:
    """Return the next step. ``waited_s`` is how long an engine was waited for already."""
    rollout = profile.spec.rollout
    if rollout.paused:
        return _paused(fleet)
    step = _go_on(profile, fleet, wanted, waited_s)
    return replace(step, actions=step.actions + drop_obsolete_fit_jobs(fleet))


def restart_stranded(fleet: Fleet, waited_s: float) -> Step:
    """Restart an engine that a roll drained before its profile was refused.

    While the template is not that of the refused profile, it holds what was let pass before.
    """
    is_seen = fleet.target.observed_generation >= fleet.target.generation
    if fleet.is_template_current or not fleet.stranded or not is_seen:
        return Step()
    return _replace(fleet, min(fleet.stranded, key=_urgency), waited_s)


def drop_obsolete_fit_jobs(fleet: Fleet) -> tuple[Action, ...]:
    """Delete the Jobs that answer for earlier edits, also of a profile that is refused."""
    return tuple(DeleteFitJob(name) for name in fleet.obsolete_fit_jobs)


def _go_on(profile: KVRegistryProfile, fleet: Fleet, wanted: Wanted, waited_s: float) -> Step:
    settings = _ensure_settings(profile, fleet, wanted.document)
    if not fleet.is_template_current:
        if _needs_fit_job(fleet):
            return _wait_for_fit_job(fleet, wanted)
        return _patch_template(profile, fleet, settings, waited_s)
    if not fleet.stale and not fleet.stranded:
        return Step(settings + _collect_garbage(fleet), wait_for_absent(fleet))
    kept = settings + _ensure_strategy(fleet)
    if fleet.target.observed_generation < fleet.target.generation:
        message = "the controller of the StatefulSet has not seen the new pod template yet"
        waiting = Waiting("TemplateNotSeen", message, is_deferred=False)
        return Step(kept, waiting, _engaged(_next_pod(fleet)))
    step = _replace_next(fleet, waited_s)
    return Step(kept + step.actions, step.waiting)


def _paused(fleet: Fleet) -> Step:
    if not fleet.has_work and not fleet.stranded:
        return Step(waiting=wait_for_absent(fleet))
    return Step(waiting=Waiting("Paused", "rollout.paused is true; set it to false to go on"))


def _ensure_settings(
    profile: KVRegistryProfile, fleet: Fleet, document: SettingsDocument
) -> tuple[Action, ...]:
    if fleet.desired_config_map in fleet.config_maps:
        return ()
    manifest = build_config_map(
        namespace=profile.metadata.namespace,
        target_name=profile.spec.target_ref.name,
        target_uid=fleet.target.uid,
        document=document,
    )
    return (ApplyConfigMap(fleet.desired_config_map, manifest),)


def _ensure_strategy(fleet: Fleet) -> tuple[Action, ...]:
    if fleet.target.strategy == "OnDelete":
        return ()
    return (SetUpdateStrategy(build_strategy_patch(), fleet.target.resource_version),)


def _needs_fit_job(fleet: Fleet) -> bool:
    """Say whether the settings are new, nobody has said that they fit, and no engine can.

    Settings that were written before were let pass then. So a revert out of a crash loop, where no
    engine can be asked either, does not wait for a Job.
    """
    if any(pod.is_available for pod in fleet.pods) or fleet.worst_fit is not None:
        return False
    is_new = fleet.desired_config_map not in fleet.config_maps
    return is_new and fleet.unanswered is None


def _wait_for_fit_job(fleet: Fleet, wanted: Wanted) -> Step:
    message = "no engine serves that could say whether the profile fits; a Job computes it"
    waiting = Waiting("FitUnknown", message, is_deferred=False)
    if fleet.fit_job is not None:
        return Step(waiting=waiting)
    return Step((RunFitJob(fleet.desired_fit_job, wanted.fit_job),), waiting)


def _patch_template(
    profile: KVRegistryProfile, fleet: Fleet, settings: tuple[Action, ...], waited_s: float
) -> Step:
    """Patch once the first pod could be replaced; a busy target is not touched at all.

    A template that lost the settings which all pods still run is restored at once.
    """
    is_change = not all(fleet.has_settings(pod) for pod in fleet.stale)
    pod = None
    if is_change and (doubt := find_doubt_about_fit(fleet)) is not None:
        return Step(waiting=doubt)
    if profile.spec.rollout.strategy == "RollingUpdate" and is_change:
        pod = _next_pod(fleet)
        if pod is not None:
            passage = pass_gate(fleet, pod, waited_s)
            if isinstance(passage, Waiting):
                return Step(waiting=passage)
    manifest = build_template_patch(
        namespace=profile.metadata.namespace,
        target=profile.spec.target_ref,
        settings_hash=fleet.desired_hash,
    )
    target = fleet.target
    patch = PatchTemplate(fleet.desired_hash, manifest, target.uid, target.resource_version)
    # The strategy goes first: with the old one, the patch itself would start a roll.
    return Step((*settings, *_ensure_strategy(fleet), patch), engaged_pod=_engaged(pod))


def _replace_next(fleet: Fleet, waited_s: float) -> Step:
    if fleet.spec.rollout.strategy == "OnDelete" and not fleet.stranded:
        names = tuple(pod.name for pod in fleet.stale)
        message = "rollout.strategy is OnDelete: a pod takes the change when it is deleted"
        return Step(waiting=Waiting("OnDelete", message, names))
    pod = _next_pod(fleet)
    if pod is None:
        return Step(waiting=wait_for_absent(fleet) or find_canary(fleet))
    others = tuple(name for name in fleet.absent if name != pod.name)
    if pod.is_available and others:
        return Step(waiting=wait_for(others))
    if (doubt := find_doubt_about_fit(fleet)) is not None:
        return Step(waiting=doubt)
    return _replace(fleet, pod, waited_s)


def _replace(fleet: Fleet, pod: Pod, waited_s: float) -> Step:
    passage = pass_gate(fleet, pod, waited_s)
    match passage:
        case Waiting():
            return Step(waiting=passage)
        case "drain":
            return Step((DrainPod(pod.name, pod.uid),))
        case "delete":
            return Step((DeletePod(pod.name, pod.uid),))
        case _:
            assert_never(passage)


def _next_pod(fleet: Fleet) -> Pod | None:
    """Return the pod to replace next."""
    stale = fleet.stale if fleet.spec.rollout.strategy == "RollingUpdate" else ()
    candidates = [pod for pod in stale if fleet.is_in_canary(pod)]
    candidates += fleet.stranded
    return min(candidates, key=_urgency, default=None)


def _engaged(pod: Pod | None) -> str | None:
    if pod is None or pod.is_dead or not (pod.engine is None or pod.is_busy):
        return None
    return pod.name


def _urgency(pod: Pod) -> tuple[bool, bool, bool, int]:
    """Order pods to be replaced: what serves nobody first, then what is idle."""
    return (pod.is_available, not pod.is_draining, pod.is_busy, -pod.ordinal)


def _collect_garbage(fleet: Fleet) -> tuple[Action, ...]:
    """Remove what is left of a roll once every pod serves: until then it may be reverted."""
    if fleet.absent:
        return ()
    jobs = () if fleet.fit_job is None else (DeleteFitJob(fleet.fit_job.name),)
    return (*(DeleteConfigMap(name) for name in fleet.unused_config_maps), *jobs)
