"""The next step of a rollout: what to do now, or what to wait for.

Owns the order: fit, settings, template, then one pod after the other. It never makes a second pod
unavailable, needs no spare GPU, and stops at every gate of ``gates``.

A pod is replaced in two steps. First its idle engine is drained: it is no longer ready, and still
takes for a moment what its Service sends. The pod is deleted when its Service no longer routes to
it and it is idle, so that no client is refused that another engine could serve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

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
from kvreg_operator.plan.gates import (
    Waiting,
    check_gate,
    find_canary,
    find_unknown_fit,
    wait_for,
    wait_for_unavailable,
)
from kvreg_operator.plan.observation import Pod
from kvreg_operator.plan.target_state import TargetState


@dataclass(frozen=True)
class Step:
    """What to do now, and what the rollout waits for after that.

    ``next_pod`` is set by a step that only prepares: the pod to replace next, unless it was seen
    idle. The time that the rollout has waited for it still counts.
    """

    actions: tuple[Action, ...] = ()
    waiting: Waiting | None = None
    next_pod: str | None = None


def next_step(state: TargetState, *, waited_s: float) -> Step:
    """Return the next step. ``waited_s`` is how long the rollout has waited for an engine."""
    if state.observation.spec.rollout.paused:
        return _paused(state)
    step = _advance(state, waited_s)
    return replace(step, actions=step.actions + drop_obsolete_fit_jobs(state))


def restart_drained(state: TargetState, waited_s: float) -> Step:
    """Restart an engine that the rollout drained before its profile was refused.

    Unless the template is that of the refused profile: an earlier one was accepted.
    """
    is_seen = state.target.observed_generation >= state.target.generation
    if state.is_template_current or not state.drained or not is_seen:
        return Step()
    return _replace(state, min(state.drained, key=_order), waited_s)


def drop_obsolete_fit_jobs(state: TargetState) -> tuple[Action, ...]:
    """Delete the Jobs that answer for earlier edits, also of a profile that is refused."""
    return tuple(DeleteFitJob(name) for name in state.obsolete_fit_jobs)


def _advance(state: TargetState, waited_s: float) -> Step:
    settings = _ensure_config_map(state)
    if not state.is_template_current:
        if _needs_fit_job(state):
            return _wait_for_fit_job(state)
        return _patch_template(state, settings, waited_s)
    if not state.stale and not state.drained:
        return Step(settings + _collect_garbage(state), wait_for_unavailable(state))
    prepared = settings + _ensure_strategy(state)
    if state.target.observed_generation < state.target.generation:
        message = "the StatefulSet controller has not observed the new pod template yet"
        waiting = Waiting("TemplateNotSeen", message, is_deferred=False)
        return Step(prepared, waiting, _name_unless_idle(_next_pod(state)))
    step = _replace_next(state, waited_s)
    return Step(prepared + step.actions, step.waiting)


def _paused(state: TargetState) -> Step:
    if not state.has_work and not state.drained:
        return Step(waiting=wait_for_unavailable(state))
    return Step(waiting=Waiting("Paused", "rollout.paused is true; set it to false to continue"))


def _ensure_config_map(state: TargetState) -> tuple[Action, ...]:
    name = state.desired.config_map_name
    if name in state.observation.config_maps:
        return ()
    return (ApplyConfigMap(name, state.desired.config_map),)


def _ensure_strategy(state: TargetState) -> tuple[Action, ...]:
    if state.target.strategy == "OnDelete":
        return ()
    return (SetUpdateStrategy(state.desired.strategy_patch, state.target.resource_version),)


def _needs_fit_job(state: TargetState) -> bool:
    """Return whether the settings are new, their fit is unknown, and no engine can report it.

    Settings whose ConfigMap exists were accepted before. So a revert out of a crash loop, where no
    engine can report it either, does not wait for a Job.
    """
    if any(pod.is_available for pod in state.pods) or state.worst_fit is not None:
        return False
    is_new = state.desired.config_map_name not in state.observation.config_maps
    return is_new and state.fit_failure is None


def _wait_for_fit_job(state: TargetState) -> Step:
    message = "no serving engine can report whether the profile fits; a Job computes it"
    waiting = Waiting("FitUnknown", message, is_deferred=False)
    if state.fit_job is not None:
        return Step(waiting=waiting)
    return Step((RunFitJob(state.desired.fit_job_name, state.desired.fit_job),), waiting)


def _patch_template(state: TargetState, settings: tuple[Action, ...], waited_s: float) -> Step:
    """Patch once the first pod could be replaced; a busy target is not touched at all.

    A template that lost the settings which all pods still have is restored at once.
    """
    is_change = not all(state.has_settings(pod) for pod in state.stale)
    pod = None
    if is_change and (unknown := find_unknown_fit(state)) is not None:
        return Step(waiting=unknown)
    if state.observation.spec.rollout.strategy == "RollingUpdate" and is_change:
        pod = _next_pod(state)
        if pod is not None:
            removal = check_gate(state, pod, waited_s)
            if isinstance(removal, Waiting):
                return Step(waiting=removal)
    desired, target = state.desired, state.target
    patch = PatchTemplate(
        desired.settings_hash, desired.template_patch, target.uid, target.resource_version
    )
    # The strategy comes first: with RollingUpdate, the patch itself would start a rollout.
    return Step((*settings, *_ensure_strategy(state), patch), next_pod=_name_unless_idle(pod))


def _replace_next(state: TargetState, waited_s: float) -> Step:
    if state.observation.spec.rollout.strategy == "OnDelete" and not state.drained:
        names = tuple(pod.name for pod in state.stale)
        message = "rollout.strategy is OnDelete: a pod gets the change when it is deleted"
        return Step(waiting=Waiting("OnDelete", message, names))
    pod = _next_pod(state)
    if pod is None:
        return Step(waiting=wait_for_unavailable(state) or find_canary(state))
    others = tuple(name for name in state.unavailable if name != pod.name)
    if pod.is_available and others:
        return Step(waiting=wait_for(others))
    if (unknown := find_unknown_fit(state)) is not None:
        return Step(waiting=unknown)
    return _replace(state, pod, waited_s)


def _replace(state: TargetState, pod: Pod, waited_s: float) -> Step:
    removal = check_gate(state, pod, waited_s)
    match removal:
        case Waiting():
            return Step(waiting=removal)
        case "drain":
            return Step((DrainPod(pod.name, pod.uid),))
        case "delete":
            return Step((DeletePod(pod.name, pod.uid),))
        case _:
            assert_never(removal)


def _next_pod(state: TargetState) -> Pod | None:
    """Return the pod to replace next."""
    stale = state.stale if state.observation.spec.rollout.strategy == "RollingUpdate" else ()
    candidates = [pod for pod in stale if state.is_in_canary(pod)]
    candidates += state.drained
    return min(candidates, key=_order, default=None)


def _name_unless_idle(pod: Pod | None) -> str | None:
    if pod is None or pod.is_dead or not (pod.engine is None or pod.is_busy):
        return None
    return pod.name


def _order(pod: Pod) -> tuple[bool, bool, bool, int]:
    """Order the pods to replace: unavailable ones first, then idle ones."""
    return (pod.is_available, not pod.is_draining, pod.is_busy, -pod.ordinal)


def _collect_garbage(state: TargetState) -> tuple[Action, ...]:
    """Delete what a rollout leaves behind once every pod serves: until then it may be reverted."""
    if state.unavailable:
        return ()
    jobs = () if state.fit_job is None else (DeleteFitJob(state.fit_job.name),)
    return (*(DeleteConfigMap(name) for name in state.unused_config_maps), *jobs)
