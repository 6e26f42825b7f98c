"""One look reads what belongs to a target, and asks its engines."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.operator.cluster_objects import (
    KEY,
    PROFILE_PATH,
    TARGET_PATH,
    clients,
    hash_of,
    put_pod,
    put_profile,
    put_served,
    put_target,
)
from tests.operator.fake_api import FakeApi, path_of
from tests.operator.objects import TARGET

from kvreg_operator.errors import PermanentError
from kvreg_operator.observer import Look, Observer
from kvreg_operator.profile import ProfileStatus


def look(api: FakeApi, num_looks: int = 1, **directory: Any) -> tuple[Look, ...]:
    """Serve the fake, look a number of times, and return what the last look saw."""

    async def run() -> tuple[Look, ...]:
        async with clients(api, **directory) as (cluster, engines):
            observer = Observer(cluster, engines)
            # The port is known by now.
            if TARGET_PATH in api.objects:
                refresh(api)
            looks: tuple[Look, ...] = ()
            for _ in range(num_looks):
                looks = await observer.look(KEY)
            return looks

    return asyncio.run(run())


def refresh(api: FakeApi) -> None:
    """Give the pods the port that the fake listens on."""
    for path, manifest in list(api.objects.items()):
        if "/pods/" in path:
            for container in manifest["spec"]["containers"]:
                for port in container.get("ports", []):
                    port["containerPort"] = api.port


def served(**spec: Any) -> FakeApi:
    api = FakeApi()
    put_served(api, **spec)
    return api


def test_everything_of_a_target_is_seen() -> None:
    (seen,) = look(served())
    assert seen.observed.target is not None
    assert seen.observed.config_maps == {f"{TARGET}-profile-{hash_of()}"}
    (pod,) = seen.observed.pods
    assert pod.is_available
    assert pod.settings_hash == hash_of()
    assert pod.engine is not None
    assert pod.engine.fit is not None


def test_look_writes_nothing() -> None:
    api = served()
    look(api)
    assert api.writes == []


def test_engine_that_has_not_started_is_not_asked() -> None:
    api = served()
    put_pod(api, hash_of(), started=False)
    (seen,) = look(api)
    assert seen.observed.pods[0].engine is None
    assert api.engine.keys == []


def test_pod_on_its_way_out_is_not_asked() -> None:
    api = served()
    put_pod(api, hash_of(), deletionTimestamp="2026-01-01T00:00:00Z")
    look(api)
    assert api.engine.keys == []


def test_pods_of_others_are_not_seen() -> None:
    api = served()
    put_pod(api, ownerReferences=[])
    (seen,) = look(api)
    assert seen.observed.pods == ()


def test_engine_that_does_not_answer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    api = served()
    target = api.objects[path_of("pods", f"{TARGET}-0")]
    target["spec"]["containers"][0]["ports"] = []
    (seen,) = look(api, num_looks=3)
    assert seen.observed.pods[0].engine is None
    assert len([r for r in caplog.records if "no answer" in r.message]) == 1


def test_key_is_read_anew_with_each_look(tmp_path: Path) -> None:
    path = tmp_path / "key"
    api = served()

    async def run() -> None:
        async with clients(api, api_key_file=path) as (cluster, engines):
            refresh(api)
            for key in ("first", "second"):
                path.write_text(f"{key}\n")
                await Observer(cluster, engines).look(KEY)

    asyncio.run(run())
    assert api.engine.keys == ["Bearer first"] * 2 + ["Bearer second"] * 2


def test_key_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="API key"):
        look(served(), api_key_file=tmp_path / "none")


def test_target_without_a_profile_is_none_of_our_business() -> None:
    api = FakeApi()
    put_target(api)
    assert look(api) == ()
    assert len(api.requests) == 1


def test_profile_on_its_way_out_is_left_alone() -> None:
    api = served()
    api.objects[PROFILE_PATH]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert look(api) == ()


def test_profile_without_a_target_is_seen() -> None:
    api = FakeApi()
    put_profile(api)
    (seen,) = look(api)
    assert seen.observed.target is None


def test_profile_in_charge_comes_first_and_alone_knows_engines() -> None:
    api = served()
    put_profile(api, "another")
    first, second = look(api)
    assert [first.profile.metadata.name, second.profile.metadata.name] == ["another", "small"]
    assert [other.metadata.name for other in second.observed.others] == ["another"]


@pytest.mark.parametrize(
    "spec",
    [
        {"currentState": "Compress"},
        {"targetRef": {"name": TARGET, "kind": "LeaderWorkerSet"}},
        {"lanes": "many"},
    ],
)
def test_profile_of_a_newer_definition_is_passed_over_and_logged_once(
    spec: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    api = served()
    put_profile(api, "newer", **spec)
    (seen,) = look(api, num_looks=3)
    assert seen.profile.metadata.name == "small"
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "serving/newer" in record.message
    (field,) = spec
    assert field in record.message


def test_status_of_a_newer_operator_is_taken_for_none() -> None:
    api = served()
    api.objects[PROFILE_PATH]["status"] = {"conditions": [{"type": "Enlightened"}]}
    (seen,) = look(api)
    assert seen.profile.status == ProfileStatus()


def test_answer_of_a_job_is_read_from_its_pod() -> None:
    api = served()
    labels = {"kvreg.dev/target": TARGET}
    api.put(
        path_of("jobs", "chat-fit-1"),
        {"metadata": {"labels": labels}, "status": {}},
    )
    text = '{"fits": false, "required_bytes": 3, "available_bytes": 2, "short_by_bytes": 1}'
    ended = {"name": "fit", "state": {"terminated": {"exitCode": 1, "message": text}}}
    api.put(
        path_of("pods", "chat-fit-1-x"),
        {
            "metadata": {"labels": {**labels, "batch.kubernetes.io/job-name": "chat-fit-1"}},
            "spec": {"containers": [{"name": "fit"}]},
            "status": {"containerStatuses": [ended]},
        },
    )
    (seen,) = look(api)
    (job,) = seen.observed.fit_jobs
    assert job.answer is not None
    assert job.answer.short_by_bytes == 1
    assert [pod.name for pod in seen.observed.pods] == [f"{TARGET}-0"]
