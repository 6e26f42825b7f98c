"""The gates of a roll: whether a pod may be taken now, and what is waited for where not.

Owns the reasons for waiting and their sentences, which name no number that changes by itself. What
is done once a gate is open is in ``rollout``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvreg_operator.plan.observation import Pod
from kvreg_operator.plan.target_state import TargetState

ProgressReason = Literal["TemplateNotSeen", "PodsNotReady", "Draining"]
DeferralReason = Literal[
    "Busy", "IdleTimeout", "EngineUnreachable", "FitUnknown", "Paused", "Canary", "OnDelete"
]
BOUNDED_REASONS: frozenset[str] = frozenset(
    {"Busy", "Draining", "IdleTimeout", "EngineUnreachable"}
)
"""What ``force`` passes by after ``idleTimeoutSeconds``."""


@dataclass(frozen=True)
class Waiting:
    """What a roll waits for. ``is_deferred``: it has not begun, or a person has to do something."""

    reason: ProgressReason | DeferralReason
    message: str
    pods: tuple[str, ...] = ()
    is_deferred: bool = True


Removal = Literal["drain", "delete"]


def check_gate(state: TargetState, pod: Pod, waited_s: float) -> Removal | Waiting:
    """Say how the pod may be taken now, or what it waits for."""
    rollout = state.observation.spec.rollout
    if pod.is_dead or not rollout.wait_for_idle:
        return "delete"
    if _is_forced(state, waited_s):
        return "delete"
    if pod.engine is None:
        message = f"{pod.name} has started, but its engine does not say whether it is idle"
        return Waiting("EngineUnreachable", message, (pod.name,))
    limit_s = rollout.idle_timeout_seconds
    if not pod.is_busy:
        if not pod.is_draining:
            return "drain"
        if pod.is_ready and waited_s < limit_s:
            message = f"{pod.name} is drained; its Service still sends requests to it"
            return Waiting("Draining", message, (pod.name,), is_deferred=False)
        return "delete"
    if waited_s >= limit_s:
        what = "was never seen idle"
        if pod.is_draining:
            what = "takes nothing new, and has not finished what it runs"
        message = (
            f"{pod.name} {what} within {limit_s} s; "
            "it is replaced once it is idle, or at once with rollout.force"
        )
        return Waiting("IdleTimeout", message, (pod.name,))
    then = "replaced anyway" if rollout.force else "reported"
    if pod.is_draining:
        message = (
            f"{pod.name} takes nothing new and finishes what it runs; it is then replaced, "
            f"and {then} after {limit_s} s"
        )
        return Waiting("Draining", message, (pod.name,), is_deferred=False)
    message = (
        f"{pod.name} runs requests; it is replaced once it is idle, and {then} after {limit_s} s"
    )
    return Waiting("Busy", message, (pod.name,))


def _is_forced(state: TargetState, waited_s: float) -> bool:
    rollout = state.observation.spec.rollout
    return rollout.force and waited_s >= rollout.idle_timeout_seconds


def find_unknown_fit(state: TargetState) -> Waiting | None:
    """Where an engine serves, one has to have said that the profile fits, forced or not."""
    serving = tuple(pod.name for pod in state.pods if pod.is_available)
    if not serving or not state.stale:
        return None
    if any(pod.engine is not None and pod.engine.fit is not None for pod in state.pods):
        return None
    return Waiting("FitUnknown", "no engine says whether the profile fits its memory", serving)


def find_canary(state: TargetState) -> Waiting | None:
    """Say that the canary holds the others, if it does."""
    canary, held = state.observation.spec.canary, tuple(pod.name for pod in state.stale)
    if canary is None or not held:
        return None
    message = (
        f"the canary of {canary.pods} pod(s) is served; remove spec.canary to go on, "
        "or restore the spec to revert"
    )
    return Waiting("Canary", message, held)


def wait_for_unavailable(state: TargetState) -> Waiting | None:
    """Say which pods do not serve now, if any."""
    return wait_for(state.unavailable) if state.unavailable else None


def wait_for(names: tuple[str, ...]) -> Waiting:
    """Say that these pods are waited for."""
    message = f"not ready yet: {', '.join(names)}"
    return Waiting("PodsNotReady", message, names, is_deferred=False)
