"""One look at a target: its profiles, its objects and its engines, as they are now.

Owns what is asked of the API server, in which order, and what is done with a profile that cannot be
read: it is passed over with a complaint, and keeps its seniority. It decides nothing from what it
sees.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvreg_operator.clients.api_server import (
    CONFIG_MAPS,
    JOBS,
    PODS,
    PROFILES,
    STATEFUL_SETS,
    ClusterApi,
)
from kvreg_operator.clients.errors import PermanentError
from kvreg_operator.crd.profile import KVRegistryProfile, Metadata, ProfileSpec, ProfileStatus
from kvreg_operator.manifests.rendering import TARGET_LABEL, Manifest
from kvreg_operator.observe.engine_directory import EngineDirectory
from kvreg_operator.observe.reading import is_controlled_by, read_observed
from kvreg_operator.observe.targets import TargetKey, find_target
from kvreg_operator.plan.observation import EngineState, Observed
from kvreg_operator.plan.planning import Event
from kvreg_operator.reconcile.event_recorder import EventRecorder

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What was seen of one profile."""

    profile: KVRegistryProfile
    observed: Observed


class Observer:
    """Looks at targets. It remembers only which profiles it has complained about."""

    def __init__(self, api: ClusterApi, engines: EngineDirectory, recorder: EventRecorder) -> None:
        self._api = api
        self._engines = engines
        self._recorder = recorder
        self._unreadable: dict[str, str] = {}

    async def look(self, target: TargetKey) -> tuple[Look, ...]:
        """Look at the profiles of a target, the one in charge first. None means nothing to do.

        Raises:
            OperatorError: The API server did not answer, or refused, or the key of the engines
                cannot be read.
        """
        mine, claims = await self._read_profiles(target)
        if not mine:
            self._engines.forget(target)
            return ()
        parts = await self._read_parts(target)
        engines: dict[str, EngineState] = {}
        senior = min(claims, key=lambda claim: claim.seniority)
        # Whoever is not in charge does not need to know.
        if parts["target"] is not None and senior.uid == mine[0].metadata.uid:
            uid = parts["target"]["metadata"]["uid"]
            own = [pod for pod in parts["pods"] if is_controlled_by(pod, uid)]
            engines.update(await self._ask_engines(target, mine[0], own))
        return tuple(
            Look(profile, read_observed(profile, **parts, engines=engines, others=claims))
            for profile in mine
        )

    async def _read_profiles(
        self, target: TargetKey
    ) -> tuple[list[KVRegistryProfile], list[Metadata]]:
        """Return the profiles of a target, and who claims it: also those that cannot be read."""
        mine, claims = [], []
        async for manifest in self._api.each(PROFILES, target.namespace):
            # Before anything else of it is read: a namespace may hold those of many targets.
            named = find_target("KVRegistryProfile", manifest)
            if named not in (target, None):
                continue
            try:
                metadata = Metadata.model_validate(manifest["metadata"])
                if metadata.deletion_timestamp is not None:
                    continue
                if named is not None:
                    claims.append(metadata)
                mine.append(read_profile(manifest))
            except ValidationError as err:
                await self._complain(manifest, err)
        return sorted(mine, key=lambda profile: profile.metadata.seniority), claims

    async def _ask_engines(
        self, target: TargetKey, profile: KVRegistryProfile, pods: list[Manifest]
    ) -> Mapping[str, EngineState]:
        try:
            return await self._engines.ask(target, profile, pods)
        except PermanentError as err:
            event = Event("Warning", "KeyUnreadable", str(err))
            await self._recorder.record(profile.metadata, event)
            raise

    async def _read_parts(self, target: TargetKey) -> dict[str, Any]:
        namespace, labels = target.namespace, f"{TARGET_LABEL}={target.name}"
        stateful_set = await self._api.find(STATEFUL_SETS, namespace, target.name)
        if stateful_set is None:
            return {"target": None, "pods": [], "config_maps": [], "jobs": []}
        pods = await self._api.list_all(PODS, namespace, _selector(stateful_set))
        # Before their pods: a Job that is seen to have ended has left its answer by then.
        jobs = await self._api.list_all(JOBS, namespace, labels)
        if jobs:
            pods += await self._api.list_all(PODS, namespace, labels)
        config_maps = await self._api.list_all(CONFIG_MAPS, namespace, labels)
        return {"target": stateful_set, "pods": pods, "config_maps": config_maps, "jobs": jobs}

    async def _complain(self, manifest: Manifest, err: ValidationError) -> None:
        """Say once per version why a profile is passed over."""
        metadata = manifest["metadata"]
        uid, version = str(metadata.get("uid")), str(metadata.get("resourceVersion"))
        if self._unreadable.get(uid) == version:
            return
        self._unreadable[uid] = version
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))} = {str(each['input'])[:80]}: {each['msg']}"
            for each in err.errors(include_url=False)
        )
        where = f"{metadata.get('namespace')}/{metadata.get('name')}"
        message = "this version of the operator cannot read it"
        _logger.error("profile %s is passed over: %s: %s", where, message, problems)
        try:
            about = Metadata.model_validate(metadata)
        except ValidationError:
            return
        event = Event("Warning", "Unreadable", f"passed over: {message}: {problems}")
        await self._recorder.record(about, event)


def read_profile(manifest: Manifest) -> KVRegistryProfile:
    """Read a profile. A status that cannot be read is taken for none: it is written anew.

    Raises:
        ValidationError: What is asked cannot be read, as a value of a newer definition.
    """
    metadata = Metadata.model_validate(manifest.get("metadata"))
    spec = ProfileSpec.model_validate(manifest.get("spec"))
    try:
        status = ProfileStatus.model_validate(manifest.get("status") or {})
    except ValidationError:
        status = ProfileStatus()
    return KVRegistryProfile(metadata=metadata, spec=spec, status=status)


def _selector(stateful_set: Manifest) -> str:
    """Return the StatefulSet's own selector of pods, as a query takes it."""
    selector = stateful_set["spec"]["selector"]
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or []:
        key, values = each["key"], ",".join(each.get("values") or [])
        match each["operator"]:
            case "In":
                terms.append(f"{key} in ({values})")
            case "NotIn":
                terms.append(f"{key} notin ({values})")
            case "Exists":
                terms.append(key)
            case _:
                terms.append(f"!{key}")
    return ",".join(terms)
