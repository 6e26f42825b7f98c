"""A minimal cluster: a StatefulSet, its controller, and pods with engines.

It executes the actions of a plan, as the operator and Kubernetes would, and refuses with an
AssertionError those that no plan may contain. Time passes in ticks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from tests.operator.objects import FITS, NOW_S, TARGET, TOO_LARGE, effective_of, hash_of

from kvreg_operator.crd.profile import KVRegistryProfile, Metadata, ProfileSpec, ProfileStatus
from kvreg_operator.manifests.config_map import config_map_name
from kvreg_operator.plan.actions import (
    Action,
    ApplyConfigMap,
    DeleteConfigMap,
    DeleteFitJob,
    DeletePod,
    DrainPod,
    PatchTemplate,
    RunFitJob,
    SetUpdateStrategy,
)
from kvreg_operator.plan.observation import (
    EngineState,
    Fit,
    FitJob,
    Observation,
    Pod,
    Target,
    UpdateStrategy,
)
from kvreg_operator.plan.planning import Plan, plan

TICK_S = 30
LOADING_TICKS = 2
TERMINATING_TICKS = 1
COMPUTING_TICKS = 2
MAX_ENTRIES_THAT_FIT = 8


@dataclass
class SimulatedPod:
    """A pod from its creation to its end, with the requests of its engine."""

    uid: str
    ordinal: int
    revision: str
    settings_hash: str | None
    served: ProfileSpec
    is_broken: bool
    loading_ticks: int = LOADING_TICKS
    busy_ticks: int = 0
    is_draining: bool = False
    is_silent: bool = False
    terminating_ticks: int | None = None

    @property
    def is_up(self) -> bool:
        return self.loading_ticks == 0 and not self.is_broken

    @property
    def serves(self) -> bool:
        return self.is_up and not self.is_draining and self.terminating_ticks is None


@dataclass
class SimulatedJob:
    """A Job that computes whether a profile fits, or ends without an answer."""

    answer: Fit
    is_lost: bool
    computing_ticks: int = COMPUTING_TICKS


@dataclass
class SimulatedCluster:
    """One target and its senior profile."""

    profile: KVRegistryProfile
    replicas: int
    strategy: UpdateStrategy = "RollingUpdate"
    template_hash: str | None = None
    image: str = "image-1"
    generation: int = 1
    observed_generation: int = 1
    seen_hash: str | None = None
    seen_image: str = "image-1"
    config_maps: set[str] = field(default_factory=set)
    specs: dict[str, ProfileSpec] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    pods: dict[int, SimulatedPod] = field(default_factory=dict)
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    loses_jobs: bool = False
    others: tuple[Metadata, ...] = ()
    ticks: int = 0
    pods_made: int = 0
    bare_spec: ProfileSpec = field(init=False)

    def __post_init__(self) -> None:
        self.bare_spec = self.profile.spec

    @property
    def seen_revision(self) -> str:
        return f"{self.seen_image}-{self.seen_hash}"

    # Kubernetes and the engines.

    def tick(self) -> None:
        self.ticks += 1
        self.observed_generation = self.generation
        self.seen_hash, self.seen_image = self.template_hash, self.image
        for job in self.jobs.values():
            job.computing_ticks = max(0, job.computing_ticks - 1)
        for pod in list(self.pods.values()):
            pod.loading_ticks = max(0, pod.loading_ticks - 1)
            pod.busy_ticks = max(0, pod.busy_ticks - 1)
            if pod.terminating_ticks == 0 or pod.ordinal >= self.replicas:
                del self.pods[pod.ordinal]
            elif pod.terminating_ticks is not None:
                pod.terminating_ticks -= 1
        for ordinal in range(self.replicas):
            if ordinal not in self.pods:
                self._create(ordinal)

    def _create(self, ordinal: int) -> None:
        name = None if self.seen_hash is None else config_map_name(TARGET, self.seen_hash)
        if name is not None and name not in self.config_maps:
            # The volume cannot be mounted; the kubelet retries.
            return
        served = self.bare_spec if self.seen_hash is None else self.specs[self.seen_hash]
        self.pods_made += 1
        self.pods[ordinal] = SimulatedPod(
            uid=f"uid-{self.pods_made}",
            ordinal=ordinal,
            revision=self.seen_revision,
            settings_hash=self.seen_hash,
            served=served,
            is_broken=self.seen_hash in self.broken
            or served.registry_entries > MAX_ENTRIES_THAT_FIT,
        )

    # The user and the operator.

    def edit(self, **changes: object) -> None:
        """Change fields of the spec, as ``kubectl edit`` does."""
        spec = self.profile.spec.model_copy(update=changes)
        metadata = self.profile.metadata
        newer = metadata.model_copy(update={"generation": metadata.generation + 1})
        self.profile = self.profile.model_copy(update={"spec": spec, "metadata": newer})

    def forget_status(self) -> None:
        self.profile = self.profile.model_copy(update={"status": ProfileStatus()})

    @property
    def fit(self) -> Fit:
        fits = self.profile.spec.registry_entries <= MAX_ENTRIES_THAT_FIT
        return FITS if fits else TOO_LARGE

    def observe(self) -> Observation:
        template = self.template_hash
        target = Target(
            uid="uid-of-target",
            resource_version=str(self.generation),
            generation=self.generation,
            observed_generation=self.observed_generation,
            replicas=self.replicas,
            strategy=self.strategy,
            containers=("engine",),
            update_revision=self.seen_revision,
            settings_hash=template,
            config_map=None if template is None else config_map_name(TARGET, template),
            template={"spec": {"containers": [{"name": "engine", "image": self.image}]}},
        )
        pods = []
        for sim in self.pods.values():
            engine = None
            if sim.is_up and not sim.is_silent:
                engine = EngineState(
                    effective=effective_of(sim.served),
                    running=int(sim.busy_ticks > 0),
                    queued=0,
                    is_draining=sim.is_draining,
                    fit=self.fit,
                )
            mounted = None
            if sim.settings_hash is not None:
                mounted = config_map_name(TARGET, sim.settings_hash)
            pods.append(
                Pod(
                    name=f"{TARGET}-{sim.ordinal}",
                    uid=sim.uid,
                    ordinal=sim.ordinal,
                    revision=sim.revision,
                    settings_hash=sim.settings_hash,
                    config_map=mounted,
                    is_started=sim.is_up,
                    is_ready=sim.is_up and not sim.is_draining,
                    is_terminating=sim.terminating_ticks is not None,
                    engine=engine,
                    failure="CrashLoopBackOff" if sim.is_broken else None,
                )
            )
        jobs = []
        for name, job in self.jobs.items():
            has_ended = job.computing_ticks == 0
            answer = job.answer if has_ended and not job.is_lost else None
            failure = "DeadlineExceeded" if has_ended and job.is_lost else None
            jobs.append(FitJob(name, answer, failure))
        maps = frozenset(self.config_maps)
        return Observation(self.profile, target, tuple(pods), maps, self.others, tuple(jobs))

    def reconcile(self, arrival: int | None = None) -> Plan:
        """Observe, plan, execute and write the status: one reconcile.

        With ``arrival``, that pod gets a request between the observation and the execution.
        """
        self.specs[hash_of(self.profile)] = self.profile.spec
        planned = plan(self.observe(), NOW_S + self.ticks * TICK_S)
        touching = [a for a in planned.actions if isinstance(a, DrainPod | DeletePod)]
        assert len(touching) <= 1, "more than one pod in one reconcile"
        if arrival is not None and arrival in self.pods and self.pods[arrival].serves:
            self.pods[arrival].busy_ticks = 2
        if planned.actions:
            self._require_permission()
        if any(isinstance(action, PatchTemplate) for action in planned.actions):
            self._require_fit()
        for action in planned.actions:
            self._execute(action)
        self.profile = self.profile.model_copy(update={"status": planned.status})
        return planned

    def _require_permission(self) -> None:
        assert not self.profile.spec.rollout.paused, "paused"
        assert all(other.seniority > self.profile.metadata.seniority for other in self.others), (
            "conflict"
        )

    def _require_fit(self) -> None:
        """Settings that do not fit are tried only if no engine serves and the Job has failed."""
        was_written = config_map_name(TARGET, hash_of(self.profile)) in self.config_maps
        if self.fit.fits or was_written:
            return
        is_lost = any(job.is_lost and job.computing_ticks == 0 for job in self.jobs.values())
        assert is_lost, "settings that do not fit were tried"

    def _execute(self, action: Action) -> None:
        match action:
            case ApplyConfigMap(name=name):
                self.config_maps.add(name)
            case SetUpdateStrategy():
                self.strategy = "OnDelete"
            case PatchTemplate(settings_hash=settings_hash):
                assert self.strategy == "OnDelete", "the controller would roll by itself"
                assert config_map_name(TARGET, settings_hash) in self.config_maps
                self.template_hash = settings_hash
                self.generation += 1
            case DrainPod(uid=uid):
                self._require_replaceable(uid).is_draining = True
            case DeletePod(uid=uid):
                pod = self._require_replaceable(uid)
                rollout = self.profile.spec.rollout
                is_gentle = rollout.wait_for_idle and not rollout.force
                assert not (is_gentle and pod.is_up and pod.busy_ticks), "a request was cut"
                pod.terminating_ticks = TERMINATING_TICKS
            case DeleteConfigMap(name=name):
                self._require_unused(name)
                self.config_maps.remove(name)
            case RunFitJob(name=name):
                serving = [pod for k, pod in self.pods.items() if k < self.replicas and pod.serves]
                assert not serving, "an engine can report the fit"
                self.jobs[name] = SimulatedJob(self.fit, self.loses_jobs)
            case DeleteFitJob(name=name):
                del self.jobs[name]
            case _:
                assert_never(action)

    def _require_replaceable(self, uid: str) -> SimulatedPod:
        (pod,) = (pod for pod in self.pods.values() if pod.uid == uid)
        assert pod.terminating_ticks is None
        assert self.observed_generation == self.generation, "may come back as it was"
        if pod.serves:
            serving = {k for k, other in self.pods.items() if other.serves}
            assert serving >= set(range(self.replicas)), "a second pod would be down"
            fits = self.profile.spec.registry_entries <= MAX_ENTRIES_THAT_FIT
            assert fits, "a serving pod was touched for a profile that does not fit"
        return pod

    def _require_unused(self, name: str) -> None:
        used = {self.template_hash, self.seen_hash, *(p.settings_hash for p in self.pods.values())}
        assert name not in {config_map_name(TARGET, h) for h in used if h is not None}
