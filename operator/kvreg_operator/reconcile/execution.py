"""One plan, carried out: each action becomes one request, on the conditions it names.

Owns the translation of actions to requests. It decides nothing: what to do, in which order, and
what comes after a failure is in the plan, and in the next look.
"""

from __future__ import annotations

from typing import assert_never

from kvreg_operator.clients.api_server import (
    CONFIG_MAPS,
    CONFLICT_DELAY_S,
    JOBS,
    PODS,
    STATEFUL_SETS,
    ClusterApi,
    Conflict,
)
from kvreg_operator.clients.errors import PermanentError
from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.manifests.rendering import Manifest
from kvreg_operator.observe.engine_directory import EngineDirectory
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


class Execution:
    """Carries out the actions of one plan. It remembers which version of the target it made."""

    def __init__(
        self, api: ClusterApi, engines: EngineDirectory, profile: KVRegistryProfile
    ) -> None:
        self._api = api
        self._engines = engines
        self._namespace = profile.metadata.namespace
        self._target = profile.spec.target_ref
        self._version: str | None = None

    async def carry_out(self, action: Action) -> None:
        """Do what the action says; what is already so is success.

        Raises:
            OperatorError: The API server or the engine did not answer, or refused; ``Conflict``
                where the object is no longer the one that was looked at.
        """
        match action:
            case ApplyConfigMap(manifest=manifest):
                await self._api.apply(CONFIG_MAPS, manifest)
            case SetUpdateStrategy():
                await self._set_strategy(action)
            case PatchTemplate():
                await self._patch_template(action)
            case DrainPod(name=name, uid=uid):
                await self._drain(name, uid)
            case DeletePod(name=name, uid=uid):
                await self._api.ensure_deleted(PODS, self._namespace, name, uid)
            case DeleteConfigMap(name=name):
                await self._api.ensure_deleted(CONFIG_MAPS, self._namespace, name)
            case RunFitJob():
                await self._run_fit_job(action)
            case DeleteFitJob(name=name):
                await self._api.ensure_deleted(JOBS, self._namespace, name)
            case _:
                assert_never(action)

    async def _set_strategy(self, action: SetUpdateStrategy) -> None:
        patch = _on_condition(action.patch, resourceVersion=action.resource_version)
        patched = await self._api.merge_patch(
            STATEFUL_SETS, self._namespace, self._target.name, patch
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
        # An earlier pass may have made it. Somebody else's would never be seen among ours.
        labels: dict[str, str] = action.manifest["metadata"]["labels"]
        async for job in self._api.each(JOBS, self._namespace):
            found: dict[str, str] = job["metadata"].get("labels") or {}
            if job["metadata"]["name"] == action.name and not labels.items() <= found.items():
                raise PermanentError(f"Job {action.name} is there and is not the operator's own")

    async def _drain(self, name: str, uid: str) -> None:
        # A container that crashed has another address by now.
        pod = await self._api.find(PODS, self._namespace, name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        await self._engines.drain(pod, self._target.container)


def _on_condition(manifest: Manifest, **condition: str) -> Manifest:
    """Have the API server refuse the write when the object has changed since it was looked at.

    A target that somebody replaced meanwhile may have another strategy, under which a new template
    would roll at once; one that was deleted must not come back. An apply needs the uid for that:
    with the version alone it would ask to create the object, which the operator may not.
    """
    return {**manifest, "metadata": {**manifest.get("metadata", {}), **condition}}
