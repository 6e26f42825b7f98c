"""The things that a plan may ask for, one class each. Whoever executes them decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_operator.manifests.rendering import Manifest


@dataclass(frozen=True)
class ApplyConfigMap:
    """Apply an immutable ConfigMap, server-side."""

    name: str
    manifest: Manifest


@dataclass(frozen=True)
class SetUpdateStrategy:
    """Merge-patch the target so that only the operator replaces its pods.

    On condition that the target is the one that was looked at.
    """

    patch: Manifest
    resource_version: str


@dataclass(frozen=True)
class PatchTemplate:
    """Apply the operator's fields of the target's pod template, server-side.

    On condition that the target is the one that was looked at, or what the ``SetUpdateStrategy``
    before it made of that.
    """

    settings_hash: str
    manifest: Manifest
    uid: str
    resource_version: str


@dataclass(frozen=True)
class DrainPod:
    """Ask an idle engine to take nothing new."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod, on condition that it still has this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeleteConfigMap:
    """Delete a ConfigMap that nothing refers to."""

    name: str


@dataclass(frozen=True)
class RunFitJob:
    """Run a Job that computes whether the profile fits."""

    name: str
    manifest: Manifest


@dataclass(frozen=True)
class DeleteFitJob:
    """Delete a Job whose answer nobody needs any more."""

    name: str


Action = (
    ApplyConfigMap
    | SetUpdateStrategy
    | PatchTemplate
    | DrainPod
    | DeletePod
    | DeleteConfigMap
    | RunFitJob
    | DeleteFitJob
)
