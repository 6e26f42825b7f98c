"""The observation of a target: its profiles, its objects and its engines, as they are now.

Owns what is read from the API server, and in which order. A profile that cannot be parsed is
skipped with a warning, and keeps its seniority.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError

from kvreg_operator.clients.api_server import (
    CONFIG_MAPS,
    JOBS,
    PODS,
    PROFILES,
    STATEFUL_SETS,
    ClusterApi,
    Manifest,
)
from kvreg_operator.crd.profile import (
    TARGET_LABEL,
    KVRegistryProfile,
    Metadata,
    find_target_name,
)
from kvreg_operator.observe.engines import Engines, Reports
from kvreg_operator.observe.parsing import (
    build_observation,
    is_controlled_by,
    parse_profile,
    settings_to_fit,
)
from kvreg_operator.plan.observation import Observation

_logger = logging.getLogger(__name__)

# Records a warning event: about which profile, its reason, its message.
Warn = Callable[[Metadata, str, str], Awaitable[None]]


class Observer:
    """Observes targets. It remembers only for which versions of profiles it has warned."""

    def __init__(self, api: ClusterApi, engines: Engines, warn: Warn) -> None:
        self._api = api
        self._engines = engines
        self._warn = warn
        self._unreadable: dict[str, str] = {}

    async def observe(self, namespace: str, name: str) -> tuple[Observation, ...]:
        """Observe the StatefulSet ``name`` for each of its profiles, the senior one first.

        Returns nothing for a target without a profile.

        Raises:
            OperatorError: The API server did not answer, or refused, or the key of the engines
                cannot be read.
        """
        profiles, claims = await self._read_profiles(namespace, name)
        if not profiles:
            self._engines.forget((namespace, name))
            return ()
        parts = await self._read_parts(namespace, name)
        reports = Reports()
        senior = min(claims, key=lambda claim: claim.seniority)
        # Only the senior profile is applied and needs the reports.
        if parts["target"] is not None and senior.uid == profiles[0].metadata.uid:
            uid = parts["target"]["metadata"]["uid"]
            own = [pod for pod in parts["pods"] if is_controlled_by(pod, uid)]
            reports = await self._query_engines(profiles[0], own)
        return tuple(
            build_observation(profile, **parts, reports=reports.by_uid, others=claims)
            for profile in profiles
        )

    async def _read_profiles(
        self, namespace: str, name: str
    ) -> tuple[list[KVRegistryProfile], list[Metadata]]:
        """Return the profiles of a target, and the metadata of all, including unreadable ones."""
        profiles, claims = [], []
        async for manifest in self._api.each(PROFILES, namespace):
            # Before it is parsed: a namespace may hold the profiles of many targets.
            target_name = find_target_name(manifest)
            if target_name not in (name, None):
                continue
            try:
                metadata = Metadata.model_validate(manifest["metadata"])
                if metadata.deletion_timestamp is not None:
                    continue
                if target_name is not None:
                    claims.append(metadata)
                profiles.append(parse_profile(manifest))
            except ValidationError as err:
                await self._warn_unreadable(manifest, err)
        return sorted(profiles, key=lambda profile: profile.metadata.seniority), claims

    async def _query_engines(self, profile: KVRegistryProfile, pods: list[Manifest]) -> Reports:
        metadata, ref = profile.metadata, profile.spec.target_ref
        target = (metadata.namespace, ref.name)
        settings = settings_to_fit(profile.spec)
        reports = await self._engines.query(target, ref.container, settings, pods)
        if reports.key_error is not None:
            await self._warn(metadata, "KeyUnreadable", str(reports.key_error))
            raise reports.key_error
        return reports

    async def _read_parts(self, namespace: str, name: str) -> dict[str, Any]:
        labels = f"{TARGET_LABEL}={name}"
        stateful_set = await self._api.find(STATEFUL_SETS, namespace, name)
        if stateful_set is None:
            return {"target": None, "pods": [], "config_maps": [], "jobs": []}
        pods = await self._api.list_all(PODS, namespace, _selector(stateful_set))
        # Before their pods: a Job that has ended has left its answer in its pod.
        jobs = await self._api.list_all(JOBS, namespace, labels)
        if jobs:
            pods += await self._api.list_all(PODS, namespace, labels)
        config_maps = await self._api.list_all(CONFIG_MAPS, namespace, labels)
        return {"target": stateful_set, "pods": pods, "config_maps": config_maps, "jobs": jobs}

    async def _warn_unreadable(self, manifest: Manifest, err: ValidationError) -> None:
        """Warn once per version that a profile is skipped, and why."""
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
        _logger.error("profile %s is skipped: %s: %s", where, message, problems)
        try:
            about = Metadata.model_validate(metadata)
        except ValidationError:
            return
        await self._warn(about, "Unreadable", f"skipped: {message}: {problems}")


def _selector(stateful_set: Manifest) -> str:
    """Return the StatefulSet's own selector of pods, as a query parameter."""
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
