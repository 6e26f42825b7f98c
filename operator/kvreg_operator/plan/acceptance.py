"""Whether a profile may be carried out at all, before anything is touched.

Owns the reasons for a refusal. The memory arithmetic is the engine's own, in a pod or in a Job; its
answers are only read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.plan.fleet import Fleet
from kvreg_operator.plan.observation import Observed

RefusalReason = Literal["Conflict", "TargetNotFound", "ContainerNotFound", "DoesNotFit"]


@dataclass(frozen=True)
class Refusal:
    """Why a profile is not carried out."""

    reason: RefusalReason
    message: str


def find_refusal(
    profile: KVRegistryProfile, observed: Observed, fleet: Fleet | None
) -> Refusal | None:
    """Return why the profile is refused, or None. What is served already fits, whoever doubts it.

    ``fleet`` is what is there of the target, and None where there is no target or no engine in it.
    """
    ref = profile.spec.target_ref
    elder = min((other.seniority for other in observed.others), default=profile.metadata.seniority)
    if elder < profile.metadata.seniority:
        return Refusal(
            "Conflict",
            f"profile {elder[1]} is older and in charge of {ref.kind} {ref.name}; "
            "delete one of the two",
        )
    if observed.target is None:
        return Refusal(
            "TargetNotFound",
            f"{ref.kind} {ref.name} does not exist in namespace {profile.metadata.namespace}",
        )
    if ref.container not in observed.target.containers:
        known = ", ".join(observed.target.containers)
        return Refusal(
            "ContainerNotFound", f"{ref.kind} {ref.name} has no container {ref.container}: {known}"
        )
    worst = fleet.worst_fit if fleet is not None and fleet.has_work else None
    if worst is not None and not worst.fits:
        return Refusal(
            "DoesNotFit",
            f"the profile needs {worst.required_bytes} bytes and an engine has "
            f"{worst.available_bytes}: short by {worst.short_by_bytes}; nothing was changed for it",
        )
    return None
