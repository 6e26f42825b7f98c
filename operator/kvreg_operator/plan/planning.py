"""``plan``: from an observation and the time to actions, status and events.

Pure and level-based: it remembers nothing except through the status, so an operator that restarts
during a rollout continues it. Planning again after the actions took effect plans nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_operator.crd.profile import (
    EffectiveSettings,
    KVRegistryProfile,
    PodCounts,
    ProfileStatus,
    WaitingFor,
    moment_of,
)
from kvreg_operator.manifests.desired_state import build_desired_state, render_settings
from kvreg_operator.plan.acceptance import Refusal, find_refusal
from kvreg_operator.plan.actions import Action, Event, PatchTemplate
from kvreg_operator.plan.conditions import (
    Finding,
    build_conditions,
    find_condition_events,
    find_when_accepted,
    find_when_refused,
)
from kvreg_operator.plan.gates import BOUNDED_REASONS
from kvreg_operator.plan.observation import Observation
from kvreg_operator.plan.rollout import (
    Step,
    drop_obsolete_fit_jobs,
    next_step,
    restart_drained,
)
from kvreg_operator.plan.target_state import TargetState, build_target_state


@dataclass(frozen=True)
class Plan:
    """What to do for one profile: the actions in their order, and the status to write first.

    ``events`` are those of the status. An action has its own once it is carried out.
    """

    profile: KVRegistryProfile
    actions: tuple[Action, ...]
    status: ProfileStatus
    events: tuple[Event, ...]

    @property
    def is_change(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.actions) or self.status != self.profile.status


def plan(observation: Observation, now_s: float) -> Plan:
    """Return what to do now. ``now_s`` is in seconds since the epoch."""
    profile = observation.profile
    settings_hash = render_settings(profile).hash
    state = _compare(observation, now_s)
    refusal = find_refusal(observation, state)
    if refusal is not None or state is None:
        return _refuse(profile, refusal, state, settings_hash, now_s)
    waited_s = _waited_s(profile.status, settings_hash, now_s)
    step = next_step(state, waited_s=waited_s)
    findings = find_when_accepted(state, step, was_rolling=_was_rolling(profile.status))
    waiting_for = _waiting_for(profile.status, step, settings_hash, now_s)
    status = _status(profile, state, settings_hash, findings, waiting_for, now_s)
    return Plan(profile, step.actions, status, _events(profile.status, status, state, step))


def _compare(observation: Observation, now_s: float) -> TargetState | None:
    """Return the state of the target, or None where there is no target or no engine in it."""
    profile, target = observation.profile, observation.target
    if target is None or profile.spec.target_ref.container not in target.containers:
        return None
    desired = build_desired_state(
        profile, target_uid=target.uid, template=target.template, claims=target.claims
    )
    return build_target_state(observation, target, desired, now_s)


def _refuse(
    profile: KVRegistryProfile,
    refusal: Refusal | None,
    state: TargetState | None,
    settings_hash: str,
    now_s: float,
) -> Plan:
    assert refusal is not None, "without an engine a profile is refused"
    # Only the senior profile shows the pods.
    shown = None if refusal.reason == "Conflict" else state
    findings = find_when_refused(refusal, shown)
    step = Step()
    actions: tuple[Action, ...] = ()
    if shown is not None and not profile.spec.rollout.paused:
        step = restart_drained(shown, _waited_s(profile.status, settings_hash, now_s))
        actions = step.actions + drop_obsolete_fit_jobs(shown)
    waiting_for = _waiting_for(profile.status, step, settings_hash, now_s)
    status = _status(profile, shown, settings_hash, findings, waiting_for, now_s)
    return Plan(profile, actions, status, _events(profile.status, status, shown, step))


def _was_rolling(previous: ProfileStatus) -> bool:
    """Return whether a rollout was running or deferred: its replaced pods may still load."""
    progressing = previous.find_condition("Progressing")
    at_rest = ("Complete", "NotAccepted", "PodsNotReady")
    return progressing is not None and progressing.reason not in at_rest


def _waited_s(previous: ProfileStatus, settings_hash: str, now_s: float) -> float:
    """Return how long the rollout to this hash has waited for an engine without a break."""
    waiting = previous.waiting_for
    if waiting is None or previous.desired_hash != settings_hash:
        return 0.0
    if waiting.reason not in BOUNDED_REASONS:
        return 0.0
    return max(0.0, now_s - waiting.since.timestamp())


def _waiting_for(
    previous: ProfileStatus, step: Step, settings_hash: str, now_s: float
) -> WaitingFor | None:
    waiting, since = step.waiting, moment_of(now_s)
    earlier = previous.waiting_for if previous.desired_hash == settings_hash else None
    if earlier is not None and earlier.reason in BOUNDED_REASONS:
        if step.next_pod in earlier.pods:
            # A step that prepares does not interrupt the wait for the pod.
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
    state: TargetState | None,
    settings_hash: str,
    findings: tuple[Finding, ...],
    waiting_for: WaitingFor | None,
    now_s: float,
) -> ProfileStatus:
    return ProfileStatus(
        observed_generation=profile.metadata.generation,
        desired_hash=settings_hash,
        serving_hash=_serving_hash(state) if state else None,
        effective=_effective(state) if state else None,
        pods=_count(state) if state else None,
        waiting_for=waiting_for,
        conditions=build_conditions(profile, findings, moment_of(now_s)),
    )


def _serving_hash(state: TargetState) -> str | None:
    hashes = {pod.settings_hash for pod in state.pods if pod.is_available}
    return hashes.pop() if len(hashes) == 1 else None


def _effective(state: TargetState) -> EffectiveSettings | None:
    reported = {pod.engine.effective for pod in state.pods if pod.is_available and pod.engine}
    return reported.pop() if len(reported) == 1 else None


def _count(state: TargetState) -> PodCounts:
    return PodCounts(
        total=state.target.replicas,
        updated=sum(state.is_current(pod) for pod in state.pods),
        ready=sum(pod.is_available for pod in state.pods),
        busy=sum(pod.is_busy for pod in state.stale),
    )


def _events(
    previous: ProfileStatus, status: ProfileStatus, state: TargetState | None, step: Step
) -> tuple[Event, ...]:
    events = find_condition_events(previous, status)
    is_tried = any(isinstance(action, PatchTemplate) for action in step.actions)
    if is_tried and state is not None and state.fit_failure is not None:
        return (Event("Warning", "FitUnknown", state.fit_failure), *events)
    return events
