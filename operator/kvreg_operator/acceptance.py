"""Whether a profile may be carried out at all, before anything is touched.

Owns the reasons for a refusal. The memory arithmetic is the engine's own: this only reads its
answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvreg_operator.observed import Fit, Observed
from kvreg_operator.profile import KVRegistryProfile

RefusalReason = Literal["Conflict", "TargetNotFound", "ContainerNotFound", "DoesNotFit"]


@dataclass(frozen=True)
class Refusal:
    """Why a profile is not carried out."""

    reason: RefusalReason
    message: str


def find_refusal(
    profile: KVRegistryProfile, observed: Observed, *, has_work: bool
) -> Refusal | None:
    """Return why the profile is refused, or None.

    ``has_work`` says that pods would have to be replaced: what is served already fits.
    """
    ref = profile.spec.target_ref
    elder = min((other.seniority for other in observed.others), default=profile.seniority)
    if elder < profile.seniority:
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
    worst = _worst_fit(observed)
    if has_work and worst is not None and not worst.fits:
        return Refusal(
            "DoesNotFit",
            f"the profile needs {worst.required_bytes} bytes and an engine has "
            f"{worst.available_bytes}: short by {worst.short_by_bytes}; no pod was touched",
        )
    return None


def _worst_fit(observed: Observed) -> Fit | None:
    fits = [pod.engine.fit for pod in observed.pods if pod.engine and pod.engine.fit]
    return max(fits, key=lambda fit: fit.short_by_bytes, default=None)
