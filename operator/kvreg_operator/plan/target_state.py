"""A target compared with its desired state: which pods are current, stale, failing or missing.

Owns these questions. ``rollout`` and ``conditions`` draw the conclusions.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_operator.manifests.desired_state import DesiredState
from kvreg_operator.plan.observation import Fit, FitJob, Observation, Pod, Target

# The kubelet reports the end of a pod with some delay.
OVERDUE_AFTER_S = 60.0


@dataclass(frozen=True)
class TargetState:
    """The observed target beside the desired state.

    ``pods`` are those within the replicas. ``failures`` says which pods will not become ready by
    themselves, and why.
    """

    observation: Observation
    target: Target
    desired: DesiredState
    pods: tuple[Pod, ...]
    failures: tuple[str, ...]

    @property
    def is_template_current(self) -> bool:
        """Whether a pod that is created now gets the desired settings."""
        return (
            self.target.settings_hash == self.desired.settings_hash
            and self.target.config_map == self.desired.config_map_name
            and self.target.mounts_settings
        )

    def is_current(self, pod: Pod) -> bool:
        """Whether a pod has the desired settings and was created from the current template.

        The template includes changes by others, such as an image. With ``OnDelete`` nothing but the
        operator brings those to the pods.
        """
        return self.has_settings(pod) and pod.revision == self.target.update_revision

    def has_settings(self, pod: Pod) -> bool:
        """Whether a pod has the desired settings, whatever else its template was."""
        return (
            pod.settings_hash == self.desired.settings_hash
            and pod.config_map == self.desired.config_map_name
            and pod.mounts_settings
        )

    @property
    def stale(self) -> tuple[Pod, ...]:
        """Pods to replace, except those that terminate already."""
        return tuple(p for p in self.pods if not self.is_current(p) and not p.is_terminating)

    @property
    def drained(self) -> tuple[Pod, ...]:
        """Pods whose engine drains: only a restart makes them accept requests again.

        A rollout that was reverted, put off or paused between drain and delete leaves one behind.
        """
        return tuple(pod for pod in self.pods if pod.is_draining and not pod.is_terminating)

    @property
    def has_work(self) -> bool:
        """Whether the template or any pod differs from the desired state."""
        return not self.is_template_current or bool(self.stale)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of pods that the StatefulSet should have and does not."""
        present = {pod.ordinal for pod in self.pods}
        name = self.observation.spec.target_ref.name
        return tuple(f"{name}-{k}" for k in self.target.ordinals if k not in present)

    @property
    def unavailable(self) -> tuple[str, ...]:
        """Names of pods that do not serve now, for whatever reason."""
        down = tuple(pod.name for pod in self.pods if not pod.is_available)
        return tuple(sorted((*down, *self.missing)))

    def is_in_canary(self, pod: Pod) -> bool:
        """Whether the rollout may touch this pod: any, or the last ones while there is a canary."""
        canary = self.observation.spec.canary
        return canary is None or pod.ordinal >= self.target.ordinals.stop - canary.pods

    @property
    def worst_fit(self) -> Fit | None:
        """The answer with the least room: of the engines, or, where none answers, of the Job."""
        fits = [pod.engine.fit for pod in self.pods if pod.engine and pod.engine.fit]
        if not fits and self.fit_job is not None and self.fit_job.answer is not None:
            fits = [self.fit_job.answer]
        return max(fits, key=lambda fit: fit.short_by_bytes, default=None)

    @property
    def fit_job(self) -> FitJob | None:
        """The Job for the desired state, if there is one."""
        wanted = self.desired.fit_job_name
        return next((job for job in self.observation.fit_jobs if job.name == wanted), None)

    @property
    def obsolete_fit_jobs(self) -> tuple[str, ...]:
        """Jobs for an earlier desired state."""
        names = (job.name for job in self.observation.fit_jobs)
        return tuple(name for name in names if name != self.desired.fit_job_name)

    @property
    def fit_failure(self) -> str | None:
        """Why it is unknown whether the profile fits, although a Job has ended; else None."""
        if self.worst_fit is not None or self.fit_job is None or self.fit_job.failure is None:
            return None
        return (
            f"Job {self.fit_job.name} did not report whether the profile fits "
            f"({self.fit_job.failure}); no engine serves, so the rollout continues"
        )

    @property
    def unused_config_maps(self) -> tuple[str, ...]:
        """ConfigMaps of the operator that neither the template nor any pod refers to."""
        mounted = {pod.config_map for pod in self.observation.pods}
        used = {self.desired.config_map_name, self.target.config_map, *mounted}
        return tuple(sorted(self.observation.config_maps - used))


def build_target_state(
    observation: Observation, target: Target, desired: DesiredState, now_s: float
) -> TargetState:
    """Compare an observed target with its desired state."""
    pods = sorted(observation.pods, key=lambda pod: pod.ordinal)
    return TargetState(
        observation=observation,
        target=target,
        desired=desired,
        pods=tuple(pod for pod in pods if pod.ordinal in target.ordinals),
        failures=_find_failures(pods, now_s),
    )


def _find_failures(pods: list[Pod], now_s: float) -> tuple[str, ...]:
    # A pod that cannot be scheduled may wait for what a terminating one still holds, as a GPU.
    has_terminating = any(pod.is_terminating for pod in pods)
    failures = []
    for pod in pods:
        if pod.ends_at_s is not None:
            if now_s > pod.ends_at_s + OVERDUE_AFTER_S:
                failures.append(f"{pod.name}: is still terminating after its grace period")
        elif pod.failure is not None:
            failures.append(f"{pod.name}: {pod.failure}")
        elif pod.unschedulable is not None and not has_terminating:
            failures.append(f"{pod.name}: {pod.unschedulable}")
    return tuple(failures)
