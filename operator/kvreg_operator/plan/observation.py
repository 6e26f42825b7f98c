"""The input of a plan: the cluster and the engines at one moment, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvreg_operator.crd.profile import EffectiveSettings, KVRegistryProfile, Metadata, ProfileSpec

UpdateStrategy = Literal["RollingUpdate", "OnDelete"]


@dataclass(frozen=True)
class Fit:
    """Whether the requested profile fits the memory of an engine."""

    fits: bool
    required_bytes: int
    available_bytes: int
    short_by_bytes: int


@dataclass(frozen=True)
class EngineState:
    """What one engine reports. ``fit`` is None if it is unknown."""

    effective: EffectiveSettings
    running: int
    queued: int
    is_draining: bool
    fit: Fit | None

    @property
    def is_busy(self) -> bool:
        """Whether it has running or queued requests."""
        return self.running + self.queued > 0


@dataclass(frozen=True)
class Pod:
    """One pod of the target.

    - ``is_started``: its container runs and has passed its startup probe.
    - ``engine``: None when the engine does not answer.
    - ``failure``: what keeps the container from running, as ``CrashLoopBackOff``.
    - ``unschedulable``: why no node takes the pod.
    - ``config_map``: what it mounts. ``mounts_settings``: the engine is configured to read it.
    - ``ends_at_s``: when a terminating pod should be gone, in seconds since the epoch.
    - ``revision``: the controller's name for the template that the pod was created from.
    """

    name: str
    uid: str
    ordinal: int
    revision: str | None
    settings_hash: str | None
    config_map: str | None
    is_started: bool
    is_ready: bool
    is_terminating: bool
    engine: EngineState | None
    failure: str | None = None
    unschedulable: str | None = None
    ends_at_s: float | None = None
    mounts_settings: bool = True

    @property
    def is_available(self) -> bool:
        """Whether it serves now, so that its replacement reduces the capacity."""
        return self.is_ready and not self.is_terminating and not self.is_draining

    @property
    def is_dead(self) -> bool:
        """Whether it certainly serves no request.

        A pod that is not ready and does not answer may be draining, and finish one.
        """
        return not self.is_started and self.engine is None

    @property
    def is_busy(self) -> bool:
        """Whether its engine reports running or queued requests."""
        return self.engine is not None and self.engine.is_busy

    @property
    def is_draining(self) -> bool:
        """Whether its engine drains. Only a restart ends that."""
        return self.engine is not None and self.engine.is_draining


@dataclass(frozen=True)
class Target:
    """The StatefulSet.

    ``settings_hash`` and ``config_map`` are those of its pod template, and ``update_revision`` the
    controller's name for it. The controller has seen the template once ``observed_generation``
    reaches ``generation``. ``resource_version`` is that of the whole object, ``template`` the pod
    template as it is written, and ``claims`` the names of its volume claim templates.
    ``mounts_settings`` says that the template configures the engine to read what it mounts.
    """

    uid: str
    resource_version: str
    generation: int
    observed_generation: int
    replicas: int
    strategy: UpdateStrategy
    containers: tuple[str, ...]
    update_revision: str | None
    settings_hash: str | None
    config_map: str | None
    first_ordinal: int = 0
    template: dict[str, Any] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    mounts_settings: bool = True

    @property
    def ordinals(self) -> range:
        """The ordinals of the pods that the StatefulSet should have."""
        return range(self.first_ordinal, self.first_ordinal + self.replicas)


@dataclass(frozen=True)
class FitJob:
    """A Job that computes whether a profile fits.

    ``answer`` is None until it has one. ``failure`` says how it ended without an answer, or why the
    API server refused to create it.
    """

    name: str
    answer: Fit | None
    failure: str | None


@dataclass(frozen=True)
class Observation:
    """Everything that the plan for one profile follows from, except the time.

    ``config_maps`` are the names of those that the operator created for the target, ``fit_jobs``
    its Jobs for it, and ``others`` is the metadata of the other profiles of the same target,
    including those that cannot be parsed.
    """

    profile: KVRegistryProfile
    target: Target | None
    pods: tuple[Pod, ...] = ()
    config_maps: frozenset[str] = frozenset()
    others: tuple[Metadata, ...] = ()
    fit_jobs: tuple[FitJob, ...] = ()

    @property
    def spec(self) -> ProfileSpec:
        """What the profile requests."""
        return self.profile.spec

    def with_failed_fit_job(self, name: str, failure: str) -> Observation:
        """Return the observation with a failed Job of that name, unless there is one already."""
        if name in {job.name for job in self.fit_jobs}:
            return self
        return replace(self, fit_jobs=(*self.fit_jobs, FitJob(name, None, failure)))
