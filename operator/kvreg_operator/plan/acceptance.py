"""Whether a profile may be rolled out at all, before anything is touched.

Owns the reasons for a refusal. Whether it fits the memory, the engine computes, in a pod or a Job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvreg_operator.plan.observation import Observation
from kvreg_operator.plan.target_state import TargetState

RefusalReason = Literal["Conflict", "TargetNotFound", "ContainerNotFound", "DoesNotFit"]


@dataclass(frozen=True)
class Refusal:
    """Why a profile is not rolled out."""

    reason: RefusalReason
    message: str


def find_refusal(observation: Observation, state: TargetState | None) -> Refusal | None:
    """Return why the profile is refused, or None. The fit of a served profile is not checked.

    ``state`` is None where there is no target, or no engine in it.
    """
    profile = observation.profile
    ref = profile.spec.target_ref
    own = profile.metadata.seniority
    elder = min((other.seniority for other in observation.others), default=own)
    if elder < own:
        return Refusal(
            "Conflict",
            f"profile {elder[1]} is older and controls {ref.kind} {ref.name}; "
            "delete one of the two",
        )
    if observation.target is None:
        return Refusal(
            "TargetNotFound",
            f"{ref.kind} {ref.name} does not exist in namespace {profile.metadata.namespace}",
        )
    if ref.container not in observation.target.containers:
        known = ", ".join(observation.target.containers)
        return Refusal(
            "ContainerNotFound", f"{ref.kind} {ref.name} has no container {ref.container}: {known}"
        )
    worst = state.worst_fit if state is not None and state.has_work else None
    if worst is not None and not worst.fits:
        return Refusal(
            "DoesNotFit",
            f"the profile needs {worst.required_bytes} bytes and an engine has "
            f"{worst.available_bytes}: short by {worst.short_by_bytes}; no pod was changed",
        )
    return None
