"""The execution of plans: the status first, then one request for each action, then its event.

Owns the translation of actions into requests. The plan decides what to do, and in which order.
After a failure the next reconcile decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import assert_never

from kvreg_operator.clients.api_server import (
    CONFIG_MAPS,
    CONFLICT_DELAY_S,
    JOBS,
    PODS,
    PROFILES,
    STATEFUL_SETS,
    ClusterApi,
    Manifest,
)
from kvreg_operator.clients.errors import Conflict, PermanentError
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
    describe_action,
)
from kvreg_operator.plan.planning import Plan
from kvreg_operator.reconcile.event_recorder import EventRecorder
from kvreg_operator.reconcile.target_queue import TargetKey

# Drains the engine of a pod, in the container of that name.
Drain = Callable[[Manifest, str], Awaitable[None]]


class Executor:
    """Carries out plans.

    It remembers the last Job of each target that the API server refused for good: that Job counts
    as one that failed, until a plan would delete it.
    """

    def __init__(self, api: ClusterApi, drain: Drain, recorder: EventRecorder) -> None:
        self._api = api
        self._drain = drain
        self._recorder = recorder
        self._refused_jobs: dict[TargetKey, tuple[str, str]] = {}

    def find_refused_job(self, target: TargetKey) -> tuple[str, str] | None:
        """Return name and failure of the Job that was refused, if any."""
        return self._refused_jobs.get(target)

    def forget(self, target: TargetKey) -> None:
        """Forget a target that no profile names any more."""
        self._refused_jobs.pop(target, None)

    async def write_status(self, plan: Plan) -> bool:
        """Write the status of a plan; return False for a profile that was deleted.

        Raises:
            Conflict: The profile has changed since it was observed.
            OperatorError: The API server did not answer, or refused.
        """
        metadata = plan.profile.metadata
        patch = {
            "metadata": {"resourceVersion": metadata.resource_version},
            # As JSON it holds a null for each field without a value, which removes the field.
            "status": plan.status.model_dump(mode="json", by_alias=True),
        }
        patched = await self._api.merge_patch(
            PROFILES, metadata.namespace, metadata.name, patch, subresource="status"
        )
        return patched is not None

    async def execute(self, plan: Plan) -> None:
        """Record the events of a plan, and carry out its actions until one fails.

        Raises:
            OperatorError: As of ``Execution.carry_out``.
        """
        metadata, ref = plan.profile.metadata, plan.profile.spec.target_ref
        for event in plan.events:
            await self._recorder.record(metadata, event)
        target = TargetKey(metadata.namespace, ref.name)
        execution = Execution(self._api, self._drain, target, ref.container)
        for action in plan.actions:
            if isinstance(action, DeleteFitJob) and self._forget_job(target, action.name):
                # It was never created. Another owner's Job may have its name.
                continue
            try:
                await execution.carry_out(action)
            except PermanentError as err:
                if isinstance(action, RunFitJob):
                    self._refused_jobs[target] = (action.name, str(err))
                message = f"{type(action).__name__}: {err}"
                await self._recorder.warn(metadata, "ActionFailed", message)
                raise
            if (done := describe_action(action)) is not None:
                await self._recorder.record(metadata, done, was_done=True)

    def _forget_job(self, target: TargetKey, name: str) -> bool:
        refused = self._refused_jobs.get(target)
        if refused is None or refused[0] != name:
            return False
        del self._refused_jobs[target]
        return True


class Execution:
    """Carries out the actions of one plan. It remembers the version of the target that it made."""

    def __init__(self, api: ClusterApi, drain: Drain, target: TargetKey, container: str) -> None:
        self._api = api
        self._drain = drain
        self._target = target
        self._container = container
        self._version: str | None = None

    async def carry_out(self, action: Action) -> None:
        """Carry out the action. What is done already is no error.

        Raises:
            Conflict: The object has changed since it was observed.
            OperatorError: The API server or the engine did not answer, or refused.
        """
        namespace = self._target.namespace
        match action:
            case ApplyConfigMap(manifest=manifest):
                await self._api.apply(CONFIG_MAPS, manifest)
            case SetUpdateStrategy():
                await self._set_strategy(action)
            case PatchTemplate():
                await self._patch_template(action)
            case DrainPod(name=name, uid=uid):
                await self._drain_pod(name, uid)
            case DeletePod(name=name, uid=uid):
                await self._api.ensure_deleted(PODS, namespace, name, uid)
            case DeleteConfigMap(name=name):
                await self._api.ensure_deleted(CONFIG_MAPS, namespace, name)
            case RunFitJob():
                await self._run_fit_job(action)
            case DeleteFitJob(name=name):
                await self._api.ensure_deleted(JOBS, namespace, name)
            case _:
                assert_never(action)

    async def _set_strategy(self, action: SetUpdateStrategy) -> None:
        patch = _on_condition(action.patch, resourceVersion=action.resource_version)
        patched = await self._api.merge_patch(
            STATEFUL_SETS, self._target.namespace, self._target.name, patch
        )
        if patched is None:
            raise Conflict(f"StatefulSet {self._target.name} is gone", delay_s=CONFLICT_DELAY_S)
        self._version = patched["metadata"]["resourceVersion"]

    async def _patch_template(self, action: PatchTemplate) -> None:
        version = self._version or action.resource_version
        manifest = _on_condition(action.manifest, resourceVersion=version, uid=action.uid)
        await self._api.apply(STATEFUL_SETS, manifest)

    async def _run_fit_job(self, action: RunFitJob) -> None:
        if await self._api.ensure_created(JOBS, action.manifest):
            return
        # An earlier reconcile may have created it. Another owner's has other labels.
        labels: dict[str, str] = action.manifest["metadata"]["labels"]
        async for job in self._api.each(JOBS, self._target.namespace):
            found: dict[str, str] = job["metadata"].get("labels") or {}
            if job["metadata"]["name"] == action.name and not labels.items() <= found.items():
                raise PermanentError(
                    f"Job {action.name} exists and does not belong to the operator"
                )

    async def _drain_pod(self, name: str, uid: str) -> None:
        # A container that crashed has another address by now.
        pod = await self._api.find(PODS, self._target.namespace, name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        await self._drain(pod, self._container)


def _on_condition(manifest: Manifest, **condition: str) -> Manifest:
    """Make the API server refuse the write when the object has changed since it was observed.

    A target that was replaced meanwhile may have another strategy, under which a new template would
    roll at once; a deleted one must not come back. An apply needs the uid for that: with the
    version alone it would ask to create the object, which the operator may not.
    """
    return {**manifest, "metadata": {**manifest.get("metadata", {}), **condition}}
