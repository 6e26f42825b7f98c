"""Each action becomes one request to the API server or to an engine, on its conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.cluster_objects import (
    KEY,
    POD_PATH,
    TARGET_PATH,
    clients,
    put_pod,
    put_profile,
    put_target,
    template,
)
from tests.operator.fake_api import FakeApi, Request, path_of
from tests.operator.objects import TARGET

from kvreg_operator.clients.errors import Conflict, OperatorError, PermanentError, TemporaryError
from kvreg_operator.manifests.stateful_set import build_strategy_patch, build_template_patch
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
from kvreg_operator.reconcile.execution import Execution

TARGET_UID = f"uid-of-{TARGET}"
FORCED = {"fieldManager": "kvreg-operator", "force": "true"}
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "serving"},
    "data": {"settings.json": "{}"},
}
JOB = {
    "apiVersion": "batch/v1",
    "metadata": {"name": "chat-fit-1", "namespace": "serving", "labels": {"ours": "yes"}},
}


def carry_out(api: FakeApi, *actions: Action) -> list[Request]:
    """Carry out actions on a target and its pod; return the requests."""

    async def run() -> None:
        async with clients(api) as (cluster, engines):
            execution = Execution(cluster, engines.drain, KEY, "engine")
            for action in actions:
                await execution.carry_out(action)

    asyncio.run(run())
    return api.requests


def new_api(prepare: Callable[[FakeApi], object] = put_target) -> FakeApi:
    api = FakeApi()
    put_profile(api)
    prepare(api)
    return api


def observed_version(api: FakeApi) -> str:
    version: str = api.objects[TARGET_PATH]["metadata"]["resourceVersion"]
    return version


def patch_of(api: FakeApi, version: str | None = None) -> PatchTemplate:
    manifest = build_template_patch(
        namespace="serving", target_name=TARGET, container="engine", settings_hash="abc"
    )
    return PatchTemplate("abc", manifest, TARGET_UID, version or observed_version(api))


def test_config_map_is_applied_server_side_and_forced() -> None:
    assert carry_out(new_api(), ApplyConfigMap("settings", CONFIG_MAP)) == [
        Request(
            "PATCH",
            path_of("configmaps", "settings"),
            FORCED,
            "application/apply-patch+yaml",
            CONFIG_MAP,
        )
    ]


def test_template_is_applied_to_the_version_that_was_observed() -> None:
    api = new_api()
    action = patch_of(api)
    version = observed_version(api)
    (asked,) = carry_out(api, action)
    assert (asked.method, asked.path, asked.query) == ("PATCH", TARGET_PATH, FORCED)
    assert asked.content_type == "application/apply-patch+yaml"
    metadata = {**action.manifest["metadata"], "resourceVersion": version, "uid": TARGET_UID}
    assert asked.body == {**action.manifest, "metadata": metadata}


def test_template_keeps_what_others_own() -> None:
    api = new_api()
    carry_out(api, patch_of(api))
    (engine,) = api.objects[TARGET_PATH]["spec"]["template"]["spec"]["containers"]
    bare = template(api)["spec"]["containers"][0]
    assert {name: engine[name] for name in ("image", "ports")} == {
        "image": bare["image"],
        "ports": [{"name": "http", "containerPort": 0}],
    }


def test_strategy_is_merged_and_its_leftover_removed() -> None:
    api = new_api()
    version = observed_version(api)
    (asked,) = carry_out(api, SetUpdateStrategy(build_strategy_patch(), version))
    assert (asked.method, asked.path) == ("PATCH", TARGET_PATH)
    assert asked.content_type == "application/merge-patch+json"
    assert asked.body == {
        "metadata": {"resourceVersion": version},
        "spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}},
    }


def test_template_follows_the_strategy_of_the_same_plan() -> None:
    api = new_api()
    version = observed_version(api)
    carry_out(api, SetUpdateStrategy(build_strategy_patch(), version), patch_of(api, version))
    annotations = api.objects[TARGET_PATH]["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"kvreg.dev/settings-hash": "abc"}


@pytest.mark.parametrize("is_strategy", [True, False])
def test_target_that_changed_since_the_observation_is_not_touched(is_strategy: bool) -> None:
    api = new_api()
    version = observed_version(api)
    changed = put_target(api, updateStrategy={"type": "RollingUpdate"})
    action = SetUpdateStrategy({}, version) if is_strategy else patch_of(api, version)
    with pytest.raises(Conflict):
        carry_out(api, action)
    assert api.objects[TARGET_PATH] == changed


def test_template_is_not_applied_to_another_target_of_that_name() -> None:
    api = new_api()
    before = api.objects[TARGET_PATH]
    action = replace(patch_of(api), uid="uid-of-an-earlier-one")
    with pytest.raises(Conflict):
        carry_out(api, action)
    assert api.objects[TARGET_PATH] == before


@pytest.mark.parametrize("is_strategy", [True, False])
def test_target_that_is_gone_ends_the_reconcile(is_strategy: bool) -> None:
    api = new_api()
    version = observed_version(api)
    action = SetUpdateStrategy({}, version) if is_strategy else patch_of(api, version)
    api.remove(TARGET_PATH)
    api.refusals["create statefulsets"] = 403
    with pytest.raises(Conflict):
        carry_out(api, action)
    assert TARGET_PATH not in api.objects


def test_pod_is_deleted_on_condition_of_its_uid() -> None:
    (asked,) = carry_out(new_api(put_pod), DeletePod(f"{TARGET}-0", f"uid-of-{TARGET}-0"))
    assert (asked.method, asked.path) == ("DELETE", POD_PATH)
    assert asked.body["preconditions"] == {"uid": f"uid-of-{TARGET}-0"}


def test_pod_that_was_replaced_meanwhile_stays() -> None:
    api = new_api(put_pod)
    carry_out(api, DeletePod(f"{TARGET}-0", "uid-of-an-earlier-one"))
    assert POD_PATH in api.objects


@pytest.mark.parametrize(
    "action",
    [
        DeletePod("chat-7", "gone"),
        DeleteConfigMap("gone"),
        DeleteFitJob("gone"),
        DrainPod("chat-7", "gone"),
    ],
)
def test_object_that_is_gone_already_is_success(action: Action) -> None:
    assert len(carry_out(new_api(), action)) == 1


def test_engine_is_drained_where_its_pod_is_now() -> None:
    api = new_api()

    async def run() -> None:
        async with clients(api) as (cluster, engines):
            # After the observation: the container has crashed, and the pod has another address.
            put_pod(api)
            execution = Execution(cluster, engines.drain, KEY, "engine")
            await execution.carry_out(DrainPod(f"{TARGET}-0", f"uid-of-{TARGET}-0"))

    asyncio.run(run())
    assert api.engine.is_draining


def test_engine_of_another_pod_of_that_name_is_not_drained() -> None:
    api = new_api()

    async def run() -> None:
        async with clients(api) as (cluster, engines):
            put_pod(api)
            execution = Execution(cluster, engines.drain, KEY, "engine")
            await execution.carry_out(DrainPod(f"{TARGET}-0", "uid-of-an-earlier-one"))

    asyncio.run(run())
    assert not api.engine.is_draining


def test_job_is_created_once() -> None:
    api = new_api()
    action = RunFitJob("chat-fit-1", JOB)
    asked = carry_out(api, action, action)
    writes = [each for each in asked if each.is_write]
    assert [(each.method, each.path) for each in writes] == [("POST", path_of("jobs"))] * 2


def test_job_of_another_owner_is_an_error() -> None:
    api = new_api()
    api.put(path_of("jobs", "chat-fit-1"), {"metadata": {"labels": {}}})
    with pytest.raises(PermanentError, match="chat-fit-1 exists"):
        carry_out(api, RunFitJob("chat-fit-1", JOB))


def test_job_is_deleted_with_its_pods() -> None:
    (asked,) = carry_out(new_api(), DeleteFitJob("chat-fit-1"))
    assert (asked.method, asked.path) == ("DELETE", path_of("jobs", "chat-fit-1"))
    assert asked.body["propagationPolicy"] == "Background"


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, PermanentError), (422, PermanentError), (500, TemporaryError), (401, TemporaryError)],
)
def test_refusals_are_classed(status: int, error: type[OperatorError]) -> None:
    api = new_api()
    api.refusals["patch configmaps"] = status
    with pytest.raises(error, match=str(status)):
        carry_out(api, ApplyConfigMap("settings", CONFIG_MAP))


def test_delay_is_the_api_server_s_retry_after() -> None:
    api = new_api()
    api.refusals["patch configmaps"] = 429
    with pytest.raises(TemporaryError) as caught:
        carry_out(api, ApplyConfigMap("settings", CONFIG_MAP))
    assert caught.value.delay_s == 7


def test_server_that_cannot_be_reached_is_temporary() -> None:
    api = new_api()

    async def run() -> None:
        async with clients(api) as (cluster, engines):
            execution = Execution(cluster, engines.drain, KEY, "engine")
            cluster.client.configuration.host = "http://127.0.0.1:9"
            action: Any = DeleteConfigMap("settings")
            await execution.carry_out(action)

    with pytest.raises(TemporaryError):
        asyncio.run(run())
