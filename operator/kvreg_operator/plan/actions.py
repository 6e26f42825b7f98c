"""The actions of a plan, one class each, and the events that report them.

An action holds all that its execution needs, down to the conditions of the write. Owns the
sentences of the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, assert_never


@dataclass(frozen=True)
class ApplyConfigMap:
    """Apply an immutable ConfigMap, server-side."""

    name: str
    manifest: dict[str, Any]


@dataclass(frozen=True)
class SetUpdateStrategy:
    """Merge-patch the target so that only the operator replaces its pods.

    On condition that the target has not changed since it was observed.
    """

    patch: dict[str, Any]
    resource_version: str


@dataclass(frozen=True)
class PatchTemplate:
    """Apply the operator's fields of the target's pod template, server-side.

    On condition that the target has not changed since it was observed, except by the
    ``SetUpdateStrategy`` before it.
    """

    settings_hash: str
    manifest: dict[str, Any]
    uid: str
    resource_version: str


@dataclass(frozen=True)
class DrainPod:
    """Drain an idle engine."""

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
    """Create a Job that computes whether the profile fits."""

    name: str
    manifest: dict[str, Any]


@dataclass(frozen=True)
class DeleteFitJob:
    """Delete a Job whose answer is not needed any more."""

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


@dataclass(frozen=True)
class Event:
    """One event about a profile."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def describe_action(action: Action) -> Event | None:
    """Return the event of an action that was carried out, if it has one."""
    match action:
        case ApplyConfigMap(name=name):
            return Event("Normal", "SettingsWritten", f"wrote ConfigMap {name}")
        case SetUpdateStrategy():
            message = "set updateStrategy to OnDelete: only the operator replaces pods"
            return Event("Normal", "StrategySet", message)
        case PatchTemplate(settings_hash=settings_hash):
            message = f"set the pod template to settings {settings_hash}"
            return Event("Normal", "TemplatePatched", message)
        case DrainPod(name=name):
            return Event("Normal", "Draining", f"{name} is idle and drains")
        case DeletePod(name=name):
            return Event(
                "Normal", "PodReplaced", f"deleted {name}, to be recreated from the template"
            )
        case DeleteConfigMap(name=name):
            return Event("Normal", "SettingsRemoved", f"deleted unused ConfigMap {name}")
        case RunFitJob(name=name):
            message = f"created Job {name}, which computes whether the profile fits"
            return Event("Normal", "FitAsked", message)
        case DeleteFitJob():
            return None
        case _:
            assert_never(action)
