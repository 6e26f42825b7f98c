"""``plan``: from a profile, what was observed and the time to actions, status and events.

Pure and level-based: it remembers nothing but what the status says, so an operator that restarts in
the middle of a roll goes on with it. Planning again after the actions took effect plans nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from kvreg_operator.crd.profile import (
    Condition,
    EffectiveSettings,
    KVRegistryProfile,
    PodCounts,
    ProfileStatus,
    WaitingFor,
    moment_of,
)
from kvreg_operator.manifests.fit_job import build_fit_job
from kvreg_operator.manifests.settings_document import build_settings_document
from kvreg_operator.plan.acceptance import Refusal, find_refusal
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
from kvreg_operator.plan.conditions import (
    Finding,
    build_conditions,
    find_when_accepted,
    find_when_refused,
)
from kvreg_operator.plan.fleet import Fleet, build_fleet
from kvreg_operator.plan.gates import BOUNDED_REASONS
from kvreg_operator.plan.observation import Observed, Target
from kvreg_operator.plan.rollout import (
    Step,
    Wanted,
    drop_obsolete_fit_jobs,
    next_step,
    restart_stranded,
)


@dataclass(frozen=True)
class Event:
    """What a person reads in ``kubectl describe``."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What follows: the actions in their order, the status to write, the events to tell.

    ``events`` tell of the status; what to tell of an action once it is done, ``tell_action`` says.
    """

    actions: tuple[Action, ...]
    status: ProfileStatus
    events: tuple[Event, ...]


def plan(profile: KVRegistryProfile, observed: Observed, now_s: float) -> Plan:
    """Return what to do now. ``now_s`` is in seconds since the epoch."""
    document = build_settings_document(profile.metadata.name, profile.spec)
    fleet: Fleet | None = None
    wanted: Wanted | None = None
    if observed.target is not None and _has_engine(profile, observed.target):
        wanted = Wanted(document, build_fit_job(profile, observed.target))
        fleet = build_fleet(
            profile.spec,
            observed,
            observed.target,
            desired_hash=document.hash,
            desired_fit_job=wanted.fit_job["metadata"]["name"],
            now_s=now_s,
        )
    refusal = find_refusal(profile, observed, fleet)
    if refusal is not None or fleet is None or wanted is None:
        return _refuse(profile, refusal, fleet, document.hash, now_s)
    waited_s = _waited_s(profile.status, document.hash, now_s)
    step = next_step(profile, fleet, wanted, waited_s=waited_s)
    findings = find_when_accepted(fleet, step, was_rolling=_was_rolling(profile.status))
    waiting_for = _waiting_for(profile.status, step, document.hash, now_s)
    status = _status(profile, fleet, document.hash, findings, waiting_for, now_s)
    return Plan(step.actions, status, _events(profile.status, status, fleet, step))


def _has_engine(profile: KVRegistryProfile, target: Target) -> bool:
    return profile.spec.target_ref.container in target.containers


def _refuse(
    profile: KVRegistryProfile,
    refusal: Refusal | None,
    fleet: Fleet | None,
    desired_hash: str,
    now_s: float,
) -> Plan:
    assert refusal is not None, "without an engine a profile is refused"
    # Whoever is not in charge of the pods does not count them.
    shown = None if refusal.reason == "Conflict" else fleet
    findings = find_when_refused(refusal, shown)
    step = Step()
    actions: tuple[Action, ...] = ()
    if shown is not None and not profile.spec.rollout.paused:
        step = restart_stranded(shown, _waited_s(profile.status, desired_hash, now_s))
        actions = step.actions + drop_obsolete_fit_jobs(shown)
    waiting_for = _waiting_for(profile.status, step, desired_hash, now_s)
    status = _status(profile, shown, desired_hash, findings, waiting_for, now_s)
    return Plan(actions, status, _events(profile.status, status, shown, step))


def _was_rolling(previous: ProfileStatus) -> bool:
    """Say whether a roll was on, or put off: the replaced pods that load are the end of it."""
    progressing = previous.find_condition("Progressing")
    at_rest = ("Complete", "NotAccepted", "PodsNotReady")
    return progressing is not None and progressing.reason not in at_rest


def _waited_s(previous: ProfileStatus, desired_hash: str, now_s: float) -> float:
    """Return how long the roll to this hash has waited for an engine without a break."""
    waiting = previous.waiting_for
    if waiting is None or previous.desired_hash != desired_hash:
        return 0.0
    if waiting.reason not in BOUNDED_REASONS:
        return 0.0
    return max(0.0, now_s - waiting.since.timestamp())


def _waiting_for(
    previous: ProfileStatus, step: Step, desired_hash: str, now_s: float
) -> WaitingFor | None:
    waiting, since = step.waiting, moment_of(now_s)
    earlier = previous.waiting_for if previous.desired_hash == desired_hash else None
    if earlier is not None and earlier.reason in BOUNDED_REASONS:
        if step.engaged_pod in earlier.pods:
            # What the step prepares is no idle moment of the pod that is waited for.
            return earlier
        if waiting is not None and waiting.reason in BOUNDED_REASONS:
            since = earlier.since
    if waiting is None:
        return None
    if earlier is not None and earlier.reason == waiting.reason:
        since = earlier.since
    return WaitingFor(
        reason=waiting.reason, pods=waiting.pods, since=since, message=waiting.message
    )


def _status(
    profile: KVRegistryProfile,
    fleet: Fleet | None,
    desired_hash: str,
    findings: tuple[Finding, ...],
    waiting_for: WaitingFor | None,
    now_s: float,
) -> ProfileStatus:
    return ProfileStatus(
        observed_generation=profile.metadata.generation,
        desired_hash=desired_hash,
        serving_hash=_serving_hash(fleet) if fleet else None,
        effective=_effective(fleet) if fleet else None,
        pods=_count(fleet) if fleet else None,
        waiting_for=waiting_for,
        conditions=build_conditions(profile, findings, moment_of(now_s)),
    )


def _serving_hash(fleet: Fleet) -> str | None:
    hashes = {pod.settings_hash for pod in fleet.pods if pod.is_available}
    return hashes.pop() if len(hashes) == 1 else None


def _effective(fleet: Fleet) -> EffectiveSettings | None:
    said = {pod.engine.effective for pod in fleet.pods if pod.is_available and pod.engine}
    return said.pop() if len(said) == 1 else None


def _count(fleet: Fleet) -> PodCounts:
    return PodCounts(
        total=fleet.target.replicas,
        updated=sum(fleet.is_current(pod) for pod in fleet.pods),
        ready=sum(pod.is_available for pod in fleet.pods),
        busy=sum(pod.is_busy for pod in fleet.stale),
    )


def _events(
    previous: ProfileStatus, status: ProfileStatus, fleet: Fleet | None, step: Step
) -> tuple[Event, ...]:
    told = []
    is_tried = any(isinstance(action, PatchTemplate) for action in step.actions)
    if is_tried and fleet is not None and fleet.unanswered is not None:
        told.append(Event("Warning", "FitUnknown", fleet.unanswered))
    for condition in status.conditions:
        earlier = previous.find_condition(condition.type)
        is_known = (
            earlier is not None
            and earlier.status == condition.status
            and earlier.reason == condition.reason
        )
        if not is_known and (event := _tell_condition(condition)) is not None:
            told.append(event)
    return tuple(told)


def _tell_condition(condition: Condition) -> Event | None:
    """Tell what is true now or unknown, and a refusal; what has ended follows from it."""
    is_refusal = condition.type == "Accepted" and condition.status == "False"
    if is_refusal or condition.status == "Unknown":
        return Event("Warning", condition.reason, condition.message)
    if condition.status != "True" or condition.type == "Progressing":
        return None
    is_bad = condition.type == "Degraded"
    return Event("Warning" if is_bad else "Normal", condition.reason, condition.message)


def tell_action(action: Action) -> Event | None:
    """Return what a person should read of an action that was done, if anything."""
    match action:
        case ApplyConfigMap(name=name):
            return Event("Normal", "SettingsWritten", f"wrote ConfigMap {name}")
        case SetUpdateStrategy():
            message = "set updateStrategy to OnDelete: pods are replaced by the operator alone"
            return Event("Normal", "StrategySet", message)
        case PatchTemplate(settings_hash=settings_hash):
            message = f"set the pod template to settings {settings_hash}"
            return Event("Normal", "TemplatePatched", message)
        case DrainPod(name=name):
            return Event("Normal", "Draining", f"{name} is idle and takes nothing new from now on")
        case DeletePod(name=name):
            return Event("Normal", "PodReplaced", f"deleted {name}, to be made from the template")
        case DeleteConfigMap(name=name):
            return Event("Normal", "SettingsRemoved", f"removed ConfigMap {name}, now unused")
        case RunFitJob(name=name):
            message = f"started Job {name}, which computes whether the profile fits"
            return Event("Normal", "FitAsked", message)
        case DeleteFitJob():
            return None
        case _:
            assert_never(action)
