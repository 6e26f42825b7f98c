"""The gates of a rollout: whether a pod may be replaced now, or what the rollout waits for.

Owns the reasons for waiting and their messages, which contain no number that changes by itself.
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
"""What ``force`` overrides after ``idleTimeoutSeconds``."""


@dataclass(frozen=True)
class Waiting:
    """What a rollout waits for. ``is_deferred``: it has not begun, or a user has to act."""

    reason: ProgressReason | DeferralReason
    message: str
    pods: tuple[str, ...] = ()
    is_deferred: bool = True


Removal = Literal["drain", "delete"]


def check_gate(state: TargetState, pod: Pod, waited_s: float) -> Removal | Waiting:
    """Return how the pod may be removed now, or what that waits for."""
    rollout = state.observation.spec.rollout
    if pod.is_dead or not rollout.wait_for_idle:
        return "delete"
    if _is_forced(state, waited_s):
        return "delete"
    if pod.engine is None:
        message = f"{pod.name} has started, but its engine does not report whether it is idle"
        return Waiting("EngineUnreachable", message, (pod.name,))
    limit_s = rollout.idle_timeout_seconds
    if not pod.is_busy:
        if not pod.is_draining:
            return "drain"
        if pod.is_ready and waited_s < limit_s:
            message = f"{pod.name} is drained; its Service still routes to it"
            return Waiting("Draining", message, (pod.name,), is_deferred=False)
        return "delete"
    if waited_s >= limit_s:
        what = "was not idle"
        if pod.is_draining:
            what = "is draining, and has not finished its requests"
        message = (
            f"{pod.name} {what} within {limit_s} s; "
            "it is replaced once it is idle, or at once with rollout.force"
        )
        return Waiting("IdleTimeout", message, (pod.name,))
    then = "replaced anyway" if rollout.force else "reported"
    if pod.is_draining:
        message = (
            f"{pod.name} is draining and finishes its requests; it is then replaced, "
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
    """Return the wait for a report about the fit, which ``force`` needs, too."""
    serving = tuple(pod.name for pod in state.pods if pod.is_available)
    if not serving or not state.stale:
        return None
    if any(pod.engine is not None and pod.engine.fit is not None for pod in state.pods):
        return None
    return Waiting("FitUnknown", "no engine reports whether the profile fits its memory", serving)


def find_canary(state: TargetState) -> Waiting | None:
    """Return the wait for the end of the canary, if there is one and it holds pods."""
    canary, held = state.observation.spec.canary, tuple(pod.name for pod in state.stale)
    if canary is None or not held:
        return None
    message = (
        f"the canary of {canary.pods} pod(s) is served; remove spec.canary to continue, "
        "or restore the spec to revert"
    )
    return Waiting("Canary", message, held)


def wait_for_unavailable(state: TargetState) -> Waiting | None:
    """Return the wait for the pods that do not serve now, if any."""
    return wait_for(state.unavailable) if state.unavailable else None


def wait_for(names: tuple[str, ...]) -> Waiting:
    """Return the wait for these pods."""
    message = f"not ready yet: {', '.join(names)}"
    return Waiting("PodsNotReady", message, names, is_deferred=False)
