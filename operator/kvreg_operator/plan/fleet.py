"""The pods of a target, sorted by what a roll towards one hash has to know of them.

Owns the questions; what follows from the answers is in ``rollout`` and ``status``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_operator.crd.profile import ProfileSpec
from kvreg_operator.manifests.rendering import config_map_name
from kvreg_operator.plan.observation import Fit, FitJob, Observed, Pod, Target

# The kubelet tells a moment late that a pod has ended.
OVERDUE_AFTER_S = 60.0


@dataclass(frozen=True)
class Fleet:
    """What is there, seen from what is wanted. Pods beyond the replicas are on their way out.

    ``failures`` says which pods will not serve by themselves, and why.
    """

    spec: ProfileSpec
    target: Target
    pods: tuple[Pod, ...]
    config_maps: frozenset[str]
    mounted: frozenset[str]
    fit_jobs: tuple[FitJob, ...]
    desired_hash: str
    desired_fit_job: str
    failures: tuple[str, ...]

    @property
    def desired_config_map(self) -> str:
        """The ConfigMap that every pod should have mounted."""
        return config_map_name(self.spec.target_ref.name, self.desired_hash)

    @property
    def is_template_current(self) -> bool:
        """Whether a pod that is created now gets what is wanted."""
        return (
            self.target.settings_hash == self.desired_hash
            and self.target.config_map == self.desired_config_map
            and self.target.is_wired
        )

    def is_current(self, pod: Pod) -> bool:
        """Whether a pod was made from what is wanted.

        That includes what others changed in the template, as another image: the operator took
        the replacing of pods over, so nobody else would bring it to them.
        """
        return self.has_settings(pod) and pod.revision == self.target.update_revision

    def has_settings(self, pod: Pod) -> bool:
        """Whether a pod runs the settings of the profile, whatever else its template was."""
        return (
            pod.settings_hash == self.desired_hash
            and pod.config_map == self.desired_config_map
            and pod.is_wired
        )

    @property
    def stale(self) -> tuple[Pod, ...]:
        """Pods to replace, those on their way out excepted."""
        return tuple(p for p in self.pods if not self.is_current(p) and not p.is_terminating)

    @property
    def stranded(self) -> tuple[Pod, ...]:
        """Pods whose engine drains: they will never take a request again by themselves.

        A roll that was reverted, held or paused at the wrong moment leaves one behind.
        """
        return tuple(pod for pod in self.pods if pod.is_draining and not pod.is_terminating)

    @property
    def has_work(self) -> bool:
        """Whether any pod, or the template, is not what is wanted."""
        return not self.is_template_current or bool(self.stale)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of pods that should be there and are not."""
        present = {pod.ordinal for pod in self.pods}
        name = self.spec.target_ref.name
        return tuple(f"{name}-{k}" for k in self.target.ordinals if k not in present)

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of pods that do not serve now, for whatever reason."""
        down = tuple(pod.name for pod in self.pods if not pod.is_available)
        return tuple(sorted((*down, *self.missing)))

    def is_in_canary(self, pod: Pod) -> bool:
        """Whether the roll may touch this pod: any, or the last ones while there is a canary."""
        canary = self.spec.canary
        return canary is None or pod.ordinal >= self.target.ordinals.stop - canary.pods

    @property
    def worst_fit(self) -> Fit | None:
        """The answer that leaves least: of the engines, or, where none gives one, of the Job."""
        fits = [pod.engine.fit for pod in self.pods if pod.engine and pod.engine.fit]
        if not fits and self.fit_job is not None and self.fit_job.answer is not None:
            fits = [self.fit_job.answer]
        return max(fits, key=lambda fit: fit.short_by_bytes, default=None)

    @property
    def fit_job(self) -> FitJob | None:
        """The Job that answers for what is wanted, if there is one."""
        return next((job for job in self.fit_jobs if job.name == self.desired_fit_job), None)

    @property
    def obsolete_fit_jobs(self) -> tuple[str, ...]:
        """Jobs that answer for what nobody wants any more."""
        return tuple(job.name for job in self.fit_jobs if job.name != self.desired_fit_job)

    @property
    def unanswered(self) -> str | None:
        """Why nobody says whether the profile fits although a Job was asked for it, if so."""
        if self.worst_fit is not None or self.fit_job is None or self.fit_job.failure is None:
            return None
        return (
            f"Job {self.fit_job.name} does not say whether the profile fits "
            f"({self.fit_job.failure}); no engine serves, so nothing is lost by trying"
        )

    @property
    def unused_config_maps(self) -> tuple[str, ...]:
        """ConfigMaps of the operator that neither the template nor any pod refers to."""
        used = {self.desired_config_map, self.target.config_map, *self.mounted}
        return tuple(sorted(self.config_maps - used))


def build_fleet(
    spec: ProfileSpec,
    observed: Observed,
    target: Target,
    *,
    desired_hash: str,
    desired_fit_job: str,
    now_s: float,
) -> Fleet:
    """Sort what was observed of an existing target."""
    pods = sorted(observed.pods, key=lambda pod: pod.ordinal)
    return Fleet(
        spec=spec,
        target=target,
        pods=tuple(pod for pod in pods if pod.ordinal in target.ordinals),
        config_maps=observed.config_maps,
        mounted=frozenset(pod.config_map for pod in pods if pod.config_map is not None),
        fit_jobs=observed.fit_jobs,
        desired_hash=desired_hash,
        desired_fit_job=desired_fit_job,
        failures=_find_failures(pods, now_s),
    )


def _find_failures(pods: list[Pod], now_s: float) -> tuple[str, ...]:
    # What a pod on its way out still holds, as a card, may be what another one waits for.
    has_leaving = any(pod.is_terminating for pod in pods)
    failures = []
    for pod in pods:
        if pod.ends_at_s is not None:
            if now_s > pod.ends_at_s + OVERDUE_AFTER_S:
                failures.append(f"{pod.name}: does not end, although its grace period is over")
        elif pod.failure is not None:
            failures.append(f"{pod.name}: {pod.failure}")
        elif pod.unplaced is not None and not has_leaving:
            failures.append(f"{pod.name}: {pod.unplaced}")
    return tuple(failures)
