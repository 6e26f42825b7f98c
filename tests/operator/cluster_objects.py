"""The objects of the fake cluster: a StatefulSet, its pods and its profiles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration
from tests.operator.fake_api import FakeApi, Manifest, path_of
from tests.operator.objects import TARGET, make_profile

from kvreg_operator.clients.api_server import ClusterApi
from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.manifests.desired_state import render_settings
from kvreg_operator.manifests.stateful_set import build_template_patch
from kvreg_operator.observe.engines import Engines
from kvreg_operator.reconcile.target_queue import TargetKey

KEY = TargetKey("serving", TARGET)
SPEC = {"targetRef": {"name": TARGET}, "lanes": 1, "registryEntries": 2}
PROFILE_PATH = path_of("kvregistryprofiles", "small")
TARGET_PATH = path_of("statefulsets", TARGET)
POD_PATH = path_of("pods", f"{TARGET}-0")


def put_profile(api: FakeApi, name: str = "small", **spec: Any) -> Manifest:
    return api.put(path_of("kvregistryprofiles", name), {"spec": {**SPEC, **spec}})


def hash_of(name: str = "small", **spec: Any) -> str:
    return render_settings(make_profile(name, **SPEC | spec)).hash


def template(api: FakeApi, settings_hash: str | None = None) -> Manifest:
    """Return a pod template whose engine is the fake engine, with settings or without."""
    engine = {
        "name": "engine",
        "image": "engine:1",
        "ports": [{"name": "http", "containerPort": api.port}],
    }
    bare: Manifest = {
        "metadata": {"labels": {"app": TARGET}},
        "spec": {"containers": [engine]},
    }
    if settings_hash is None:
        return bare
    patch = build_template_patch(
        namespace="serving", target_name=TARGET, container="engine", settings_hash=settings_hash
    )
    patched = patch["spec"]["template"]
    return {
        "metadata": {**bare["metadata"], **patched["metadata"]},
        "spec": {
            "containers": [{**engine, **patched["spec"]["containers"][0]}],
            "volumes": patched["spec"]["volumes"],
        },
    }


def put_target(api: FakeApi, settings_hash: str | None = None, **spec: Any) -> Manifest:
    return api.put(
        TARGET_PATH,
        {
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": TARGET}},
                "updateStrategy": {"type": "OnDelete"},
                "template": template(api, settings_hash),
                **spec,
            },
            "status": {"observedGeneration": 1, "updateRevision": "revision-1"},
        },
    )


def put_pod(
    api: FakeApi, settings_hash: str | None = None, *, started: bool = True, **metadata: Any
) -> Manifest:
    made_from = template(api, settings_hash)
    state = {"name": "engine", "started": started, "state": {"running": {}}}
    return api.put(
        POD_PATH,
        {
            "metadata": {
                "labels": {"app": TARGET, "controller-revision-hash": "revision-1"},
                "annotations": made_from["metadata"].get("annotations", {}),
                "ownerReferences": [
                    {
                        "kind": "StatefulSet",
                        "name": TARGET,
                        "uid": f"uid-of-{TARGET}",
                        "controller": True,
                    }
                ],
                **metadata,
            },
            "spec": made_from["spec"],
            "status": {
                "podIP": "127.0.0.1",
                "conditions": [{"type": "Ready", "status": str(started)}],
                "containerStatuses": [state],
            },
        },
    )


def put_served(api: FakeApi, **spec: Any) -> None:
    """Put a profile that its one pod serves, with all objects that belong to it."""
    settings_hash = hash_of(**spec)
    put_profile(api, **spec)
    put_target(api, settings_hash)
    put_pod(api, settings_hash)
    put_config_map(api, settings_hash, f"uid-of-{TARGET}")


def put_config_map(api: FakeApi, settings_hash: str, owner_uid: str) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": TARGET, "uid": owner_uid}
    metadata = {"labels": {"kvreg.dev/target": TARGET}, "ownerReferences": [owner]}
    path = path_of("configmaps", f"{TARGET}-profile-{settings_hash}")
    api.put(path, {"metadata": metadata})


def read(api: FakeApi, path: str = PROFILE_PATH) -> KVRegistryProfile:
    return KVRegistryProfile.model_validate(api.objects[path])


@asynccontextmanager
async def clients(api: FakeApi, **engines: Any) -> AsyncIterator[tuple[ClusterApi, Engines]]:
    """Serve the fake, and connect real clients to it."""
    async with api.serve():
        configuration = Configuration(host=api.url)
        async with ApiClient(configuration) as client, httpx.AsyncClient(trust_env=False) as http:
            yield ClusterApi(client), Engines(http, **{"api_key_file": None, **engines})


def refresh(api: FakeApi) -> None:
    """Give the pods the port that the fake listens on."""
    for path, manifest in list(api.objects.items()):
        if "/pods/" in path:
            for container in manifest["spec"]["containers"]:
                for port in container.get("ports", []):
                    port["containerPort"] = api.port
