"""The five conditions of a profile, from its target and the next step of its rollout.

Owns their reasons and messages. A message contains no number that changes by itself, or the status
of a profile at rest would be written all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kvreg_operator.crd.profile import (
    Condition,
    ConditionStatus,
    ConditionType,
    EffectiveSettings,
    KVRegistryProfile,
    ProfileSpec,
    ProfileStatus,
)
from kvreg_operator.plan.acceptance import Refusal
from kvreg_operator.plan.actions import Event
from kvreg_operator.plan.observation import Pod
from kvreg_operator.plan.rollout import Step
from kvreg_operator.plan.target_state import TargetState


@dataclass(frozen=True)
class Finding:
    """A condition without its times."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str


def build_conditions(
    profile: KVRegistryProfile, findings: tuple[Finding, ...], moment: datetime
) -> tuple[Condition, ...]:
    """Build conditions from findings. A transition time changes with the status only."""
    conditions = []
    for finding in findings:
        earlier = profile.status.find_condition(finding.type)
        is_same = earlier is not None and earlier.status == finding.status
        conditions.append(
            Condition(
                type=finding.type,
                status=finding.status,
                reason=finding.reason,
                message=finding.message,
                last_transition_time=earlier.last_transition_time
                if earlier and is_same
                else moment,
                observed_generation=profile.metadata.generation,
            )
        )
    return tuple(conditions)


def find_condition_events(previous: ProfileStatus, status: ProfileStatus) -> tuple[Event, ...]:
    """Return the events of the conditions whose status or reason is new."""
    events = []
    for condition in status.conditions:
        earlier = previous.find_condition(condition.type)
        is_known = (
            earlier is not None
            and earlier.status == condition.status
            and earlier.reason == condition.reason
        )
        if not is_known and (event := _describe_condition(condition)) is not None:
            events.append(event)
    return tuple(events)


def _describe_condition(condition: Condition) -> Event | None:
    """Describe what is True or Unknown, and a refusal. What ended follows from these."""
    is_refusal = condition.type == "Accepted" and condition.status == "False"
    if is_refusal or condition.status == "Unknown":
        return Event("Warning", condition.reason, condition.message)
    if condition.status != "True" or condition.type == "Progressing":
        return None
    is_bad = condition.type == "Degraded"
    return Event("Warning" if is_bad else "Normal", condition.reason, condition.message)


def find_when_refused(refusal: Refusal, state: TargetState | None) -> tuple[Finding, ...]:
    """Return the conditions of a profile that is not rolled out."""
    is_broken = refusal.reason in ("TargetNotFound", "ContainerNotFound")
    failing = _failures(state) if state is not None else None
    if is_broken:
        degraded = Finding("Degraded", "True", refusal.reason, refusal.message)
    else:
        degraded = failing or _nothing_failed()
    return (
        Finding("Accepted", "False", refusal.reason, refusal.message),
        Finding("Progressing", "False", "NotAccepted", "a refused profile is not rolled out"),
        Finding("Ready", "False", refusal.reason, "the profile is not served: it was refused"),
        degraded,
        _not_deferred(),
    )


def find_when_accepted(
    state: TargetState, step: Step, *, was_rolling: bool = False
) -> tuple[Finding, ...]:
    """Return the conditions of a profile that is rolled out."""
    accepted = Finding("Accepted", "True", "Accepted", "the profile is valid for its target")
    return (
        accepted,
        _progressing(state, step, was_rolling),
        _ready(state),
        _degraded(state, step),
        _deferred(step),
    )


def _progressing(state: TargetState, step: Step, was_rolling: bool) -> Finding:
    if step.waiting is not None and step.waiting.is_deferred:
        return Finding("Progressing", "False", step.waiting.reason, step.waiting.message)
    if state.has_work or state.drained:
        waits = "" if step.waiting is None else f"; {step.waiting.message}"
        unknown = "" if state.fit_failure is None else f"; {state.fit_failure}"
        message = f"pods are replaced one by one{waits}{unknown}"
        return Finding("Progressing", "True", "Rolling", message)
    if step.waiting is not None:
        # A rollout ends when the replaced pods serve. A pod that is lost later starts none.
        reason = "Rolling" if was_rolling else step.waiting.reason
        return Finding("Progressing", "True", reason, step.waiting.message)
    return Finding("Progressing", "False", "Complete", "all pods have the settings of the profile")


def _ready(state: TargetState) -> Finding:
    if state.target.replicas == 0:
        return Finding("Ready", "False", "NoPods", "the target has no replicas")
    stale = [pod.name for pod in state.pods if not state.is_current(pod)]
    if stale or not state.is_template_current:
        where = ", ".join(stale) or "the pod template"
        message = f"not created from the profile and the current template: {where}"
        return Finding("Ready", "False", "NotServed", message)
    if state.unavailable:
        names = ", ".join(state.unavailable)
        return Finding("Ready", "False", "PodsNotReady", f"not ready: {names}")
    silent = [pod.name for pod in state.pods if pod.engine is None]
    if silent:
        names = ", ".join(silent)
        return Finding("Ready", "Unknown", "EngineUnreachable", f"no answer from {names}")
    if (difference := _difference(state)) is not None:
        return Finding("Ready", "False", "EffectiveDiffers", difference)
    return Finding("Ready", "True", "Served", "every engine reports that it serves the profile")


def _degraded(state: TargetState, step: Step) -> Finding:
    if (failing := _failures(state)) is not None:
        return failing
    if (difference := _difference(state)) is not None:
        return Finding("Degraded", "True", "EffectiveDiffers", difference)
    if step.waiting is not None and step.waiting.reason == "IdleTimeout":
        return Finding("Degraded", "True", "IdleTimeout", step.waiting.message)
    return _nothing_failed()


def _failures(state: TargetState) -> Finding | None:
    if not state.failures:
        return None
    what = ", ".join(state.failures)
    message = f"{what}; the rollout stops there; restore the spec to revert it"
    return Finding("Degraded", "True", "PodFailing", message)


def _nothing_failed() -> Finding:
    return Finding("Degraded", "False", "NothingFailed", "no failure was observed")


def _not_deferred() -> Finding:
    return Finding("RolloutDeferred", "False", "NotDeferred", "no rollout is deferred")


def _deferred(step: Step) -> Finding:
    if step.waiting is None or not step.waiting.is_deferred:
        return _not_deferred()
    return Finding("RolloutDeferred", "True", step.waiting.reason, step.waiting.message)


def _difference(state: TargetState) -> str | None:
    for pod in state.pods:
        difference = _difference_of(pod, state.observation.spec) if state.is_current(pod) else None
        if difference is not None:
            return difference
    return None


def _difference_of(pod: Pod, spec: ProfileSpec) -> str | None:
    if pod.engine is None:
        return None
    effective, differences = pod.engine.effective, []
    for name, requested in _requested(spec).items():
        if requested is not None and getattr(effective, name) != requested:
            differences.append(f"{name} = {getattr(effective, name)} instead of {requested}")
    if not differences:
        return None
    return (
        f"{pod.name} serves {', '.join(differences)}; "
        "a flag or a variable of its container overrides the profile"
    )


def _requested(spec: ProfileSpec) -> dict[str, object]:
    shared = EffectiveSettings.model_fields.keys() & ProfileSpec.model_fields.keys()
    return {name: getattr(spec, name) for name in sorted(shared)}
