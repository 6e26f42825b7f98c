"""``KVRegistryProfile``: what a user requests for one set of engines, and the observed status.

Owns the shape of the resource, its bounds and its defaults, for the operator and for the CRD that
is generated from it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

GROUP = "kvreg.dev"
VERSION = "v1alpha1"
KIND = "KVRegistryProfile"
PLURAL = "kvregistryprofiles"
SINGULAR = "kvregistryprofile"
SHORT_NAME = "kvrp"

# The field manager of what the operator writes, and the label of what it creates.
FIELD_MANAGER = "kvreg-operator"
TARGET_LABEL = f"{GROUP}/target"

# The bounds of the engine; a contract test compares.
MAX_LANES = 64
MAX_ENTRIES = 4096
MAX_ANCHORS = 64
# Pods of a StatefulSet have a label with its name and a hash of ten characters, of at most 63.
MAX_TARGET_NAME_LENGTH = 52

CurrentState = Literal["Keep", "Drop"]
ConditionStatus = Literal["True", "False", "Unknown"]
ConditionType = Literal["Accepted", "Progressing", "Ready", "Degraded", "RolloutDeferred"]


def as_kubernetes_time(moment: datetime) -> str:
    """Format a point in time as Kubernetes does."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Moment = Annotated[datetime, PlainSerializer(as_kubernetes_time, return_type=str)]
"""A point in time, to the second, in the format of Kubernetes."""


def moment_of(now_s: float) -> datetime:
    """Return seconds since the epoch as a time that serialises without loss."""
    return datetime.fromtimestamp(int(now_s), UTC)


class ResourcePart(BaseModel):
    """A part of the resource: camelCase in JSON. Fields of a newer CRD are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )


class TargetRef(ResourcePart):
    """The StatefulSet whose pods run the engines. It is immutable."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self == oldSelf",
                    "message": "targetRef is immutable; create another profile",
                }
            ]
        }
    )

    kind: Literal["StatefulSet"] = Field(default="StatefulSet", description="Kind of the target.")
    name: str = Field(
        min_length=1,
        max_length=MAX_TARGET_NAME_LENGTH,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Name of the StatefulSet, in the namespace of the profile.",
    )
    container: str = Field(
        default="engine", min_length=1, max_length=63, description="Container of the engine."
    )


class Rollout(ResourcePart):
    """How a change is rolled out. There is no surge: no spare GPU is needed."""

    strategy: Literal["RollingUpdate", "OnDelete"] = Field(
        default="RollingUpdate",
        description="RollingUpdate: the operator replaces one pod after the other. "
        "OnDelete: a pod gets the change when a user deletes it.",
    )
    wait_for_idle: bool = Field(
        default=True,
        description="Replace an engine only while it has no running or queued request.",
    )
    # Longer than most agent turns, and short enough to wait for.
    idle_timeout_seconds: int = Field(
        default=600,
        ge=0,
        le=7 * 24 * 3600,
        description="Time to wait for an idle engine until the profile is Degraded or, with force, "
        "the engine is replaced.",
    )
    force: bool = Field(
        default=False,
        description="After idleTimeoutSeconds, replace a busy engine; its requests have the "
        "grace period of the pod to finish.",
    )
    paused: bool = Field(default=False, description="Change nothing.")


class Canary(ResourcePart):
    """Stop after some pods. Remove the canary to continue, or restore the spec to revert."""

    pods: int = Field(ge=1, le=1000, description="Pods that get the change, highest ordinal first.")


class ProfileSpec(ResourcePart):
    """What the user requests."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.currentState != 'Drop' || self.registryEntries > 0",
                    "message": "currentState Drop and registryEntries 0 exclude each other: "
                    "only entries drop a state",
                }
            ]
        }
    )

    target_ref: TargetRef = Field(description="The StatefulSet whose pods run the engines.")
    lanes: int = Field(ge=1, le=MAX_LANES, description="C: requests that run at once.")
    registry_entries: int = Field(
        ge=0, le=MAX_ENTRIES, description="R: displaced sessions that are surely kept."
    )
    current_state: CurrentState = Field(
        default="Keep", description="Whether displaced sessions keep their frontier."
    )
    anchors: int | None = Field(
        default=None,
        ge=0,
        le=MAX_ANCHORS,
        description="A: state slots for shared beginnings of prompts. Default: the engine's.",
    )
    rollout: Rollout = Field(default=Rollout(), description="How a change is rolled out.")
    restart_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="Any text. A change of it restarts every engine, as the rollout allows.",
    )
    canary: Canary | None = Field(default=None, description="Stop after some pods.")


class Condition(ResourcePart):
    """A condition, as in other Kubernetes resources."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str
    last_transition_time: Moment
    observed_generation: int


class PodCounts(ResourcePart):
    """Pods of the target. ``busy`` counts only those that a rollout still has to replace."""

    total: int
    updated: int
    ready: int
    busy: int


class EffectiveSettings(ResourcePart):
    """The settings that serving engines report. Absent while they differ or none answers."""

    lanes: int
    registry_entries: int
    current_state: CurrentState
    anchors: int
    max_context_tokens: int
    model: str


class WaitingFor(ResourcePart):
    """What the rollout waits for, and since when."""

    reason: str
    pods: tuple[str, ...] = ()
    since: Moment
    message: str


class ProfileStatus(ResourcePart):
    """What the operator observed."""

    observed_generation: int | None = None
    desired_hash: str | None = Field(
        default=None, description="Hash of the settings that the spec requests."
    )
    serving_hash: str | None = Field(
        default=None,
        description="Hash of the settings of all ready pods; absent while they differ.",
    )
    effective: EffectiveSettings | None = None
    pods: PodCounts | None = None
    waiting_for: WaitingFor | None = None
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            }
        ),
    ] = ()

    def find_condition(self, condition_type: ConditionType) -> Condition | None:
        """Return the condition of that type, if there is one."""
        return next((c for c in self.conditions if c.type == condition_type), None)


class Metadata(ResourcePart):
    """The metadata that the operator uses."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str | None = None
    creation_timestamp: datetime
    deletion_timestamp: datetime | None = None

    @property
    def seniority(self) -> tuple[datetime, str]:
        """The order among profiles of one target; only the first one is applied."""
        return (self.creation_timestamp, self.name)


class KVRegistryProfile(ResourcePart):
    """The whole resource."""

    metadata: Metadata
    spec: ProfileSpec
    status: ProfileStatus = ProfileStatus()


def find_target_name(manifest: Any) -> str | None:
    """Return the StatefulSet that a profile names, also of a profile that cannot be parsed."""
    spec = manifest.get("spec")
    ref = spec.get("targetRef") if isinstance(spec, dict) else None
    name = ref.get("name") if isinstance(ref, dict) else None
    return name if isinstance(name, str) else None
