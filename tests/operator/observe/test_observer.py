"""An observation reads what belongs to a target, and queries its engines."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.operator.cluster_objects import (
    KEY,
    PROFILE_PATH,
    SPEC,
    TARGET_PATH,
    clients,
    hash_of,
    put_config_map,
    put_pod,
    put_profile,
    put_served,
    put_target,
    refresh,
)
from tests.operator.fake_api import FakeApi, path_of
from tests.operator.objects import NOW_S, TARGET

from kvreg_operator.clients import api_server
from kvreg_operator.clients.api_server import ClusterApi, Manifest
from kvreg_operator.clients.errors import PermanentError
from kvreg_operator.crd.profile import KVRegistryProfile, ProfileStatus
from kvreg_operator.observe import observer as observer_module
from kvreg_operator.observe.observer import Observer
from kvreg_operator.observe.parsing import parse_profile
from kvreg_operator.plan.observation import Observation
from kvreg_operator.reconcile.event_recorder import EventRecorder


def observe(api: FakeApi, num_times: int = 1, **engines: Any) -> tuple[Observation, ...]:
    """Serve the fake, observe a number of times, and return the last observation."""

    async def run() -> tuple[Observation, ...]:
        async with clients(api, **engines) as (cluster, its_engines):
            observer = Observer(cluster, its_engines, recorder_of(cluster).warn)
            # The port is known only now.
            if TARGET_PATH in api.objects:
                refresh(api)
            observations: tuple[Observation, ...] = ()
            for _ in range(num_times):
                observations = await observer.observe(KEY.namespace, KEY.name)
            return observations

    return asyncio.run(run())


def recorder_of(cluster: ClusterApi) -> EventRecorder:
    return EventRecorder(cluster, lambda: NOW_S, "here")


def served(**spec: Any) -> FakeApi:
    api = FakeApi()
    put_served(api, **spec)
    return api


def test_everything_of_a_target_is_seen() -> None:
    (seen,) = observe(served())
    assert seen.target is not None
    assert seen.config_maps == {f"{TARGET}-profile-{hash_of()}"}
    (pod,) = seen.pods
    assert pod.is_available
    assert pod.settings_hash == hash_of()
    assert pod.engine is not None
    assert pod.engine.fit is not None


def test_settings_of_an_earlier_target_of_that_name_are_not_its_own() -> None:
    api = served()
    put_config_map(api, hash_of(), "uid-of-an-earlier-one")
    (seen,) = observe(api)
    assert seen.config_maps == frozenset()


def test_observation_writes_nothing() -> None:
    api = served()
    observe(api)
    assert api.writes == []


def test_engine_that_has_not_started_is_not_queried() -> None:
    api = served()
    put_pod(api, hash_of(), started=False)
    (seen,) = observe(api)
    assert seen.pods[0].engine is None
    assert api.engine.keys == []


def test_terminating_pod_is_not_queried() -> None:
    api = served()
    put_pod(api, hash_of(), deletionTimestamp="2026-01-01T00:00:00Z")
    observe(api)
    assert api.engine.keys == []


def test_pods_of_others_are_not_seen() -> None:
    api = served()
    put_pod(api, ownerReferences=[])
    (seen,) = observe(api)
    assert seen.pods == ()


def test_engine_that_does_not_answer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    api = served()
    target = api.objects[path_of("pods", f"{TARGET}-0")]
    target["spec"]["containers"][0]["ports"] = []
    (seen,) = observe(api, num_times=3)
    assert seen.pods[0].engine is None
    assert len([r for r in caplog.records if "no answer" in r.message]) == 1


def test_key_is_read_again_with_each_observation(tmp_path: Path) -> None:
    path = tmp_path / "key"
    api = served()

    async def run() -> None:
        async with clients(api, api_key_file=path) as (cluster, engines):
            refresh(api)
            for key in ("first", "second"):
                path.write_text(f"{key}\n")
                observer = Observer(cluster, engines, recorder_of(cluster).warn)
                await observer.observe(KEY.namespace, KEY.name)

    asyncio.run(run())
    assert api.engine.keys == ["Bearer first"] * 2 + ["Bearer second"] * 2


def test_key_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="API key"):
        observe(served(), api_key_file=tmp_path / "none")


@pytest.mark.parametrize(
    "content",
    [b"sk-one\nsk-two\n", "sk-\u2013".encode(), b"sk-one sk-two", b"sk-\xff", b"sk-\x01"],
    ids=["lines", "dash", "space", "no UTF-8", "control"],
)
def test_key_that_no_header_can_carry_is_an_error_without_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(PermanentError, match="API key") as caught:
        observe(served(), api_key_file=path)
    assert "sk-" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_engines_that_answer_too_slowly_count_as_silent() -> None:
    api = served()
    api.engine.is_hung = True
    (seen,) = observe(api, timeout_s=0.1)
    assert seen.pods[0].engine is None


def test_target_without_a_profile_is_not_observed() -> None:
    api = FakeApi()
    put_target(api)
    assert observe(api) == ()
    assert len(api.requests) == 1


def test_profile_that_is_being_deleted_is_ignored() -> None:
    api = served()
    api.objects[PROFILE_PATH]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert observe(api) == ()


def test_profile_without_a_target_is_seen() -> None:
    api = FakeApi()
    put_profile(api)
    (seen,) = observe(api)
    assert seen.target is None


def test_senior_profile_comes_first_and_has_the_reports() -> None:
    api = served()
    put_profile(api, "another")
    first, second = observe(api)
    assert [first.profile.metadata.name, second.profile.metadata.name] == ["another", "small"]
    assert [other.name for other in second.others] == ["another"]


@pytest.mark.parametrize(
    "spec",
    [
        {"currentState": "Compress"},
        {"targetRef": {"name": TARGET, "kind": "LeaderWorkerSet"}},
        {"lanes": "many"},
    ],
)
def test_profile_of_a_newer_crd_is_skipped_and_logged_once(
    spec: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    api = served()
    put_profile(api, "newer", **spec)
    (seen,) = observe(api, num_times=3)
    assert seen.profile.metadata.name == "small"
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "serving/newer" in record.message
    (field,) = spec
    assert field in record.message


def put_senior(api: FakeApi, name: str = "senior", **spec: Any) -> None:
    """Put a profile of the target that is older than the others, and cannot be parsed."""
    metadata = {"creationTimestamp": "2025-01-01T00:00:00Z"}
    unreadable = {**SPEC, "currentState": "Compress", **spec}
    api.put(path_of("kvregistryprofiles", name), {"metadata": metadata, "spec": unreadable})


def test_unreadable_senior_profile_keeps_its_claim() -> None:
    api = served()
    put_senior(api)
    (seen,) = observe(api)
    assert [other.name for other in seen.others] == ["senior"]
    assert api.engine.keys == []


def test_unreadable_profile_of_another_target_claims_nothing() -> None:
    api = served()
    put_senior(api, targetRef={"name": "embed"})
    (seen,) = observe(api)
    assert seen.others == ()
    assert api.writes == []


def test_unreadable_profile_that_is_being_deleted_claims_nothing() -> None:
    api = served()
    put_senior(api)
    senior = api.objects[path_of("kvregistryprofiles", "senior")]
    senior["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    (seen,) = observe(api)
    assert seen.others == ()


@pytest.mark.parametrize("spec", [{}, {"targetRef": "a name"}], ids=["a value", "its target"])
def test_unreadable_profile_is_one_event(spec: dict[str, Any]) -> None:
    api = served()
    put_senior(api, **spec)
    observe(api, num_times=3)
    (event,) = [request.body for request in api.writes]
    assert (event["type"], event["reason"]) == ("Warning", "Unreadable")
    assert event["involvedObject"]["name"] == "senior"


def test_key_that_cannot_be_read_is_an_event(tmp_path: Path) -> None:
    api = served()
    with pytest.raises(PermanentError):
        observe(api, api_key_file=tmp_path / "none")
    (event,) = [request.body for request in api.writes]
    assert (event["reason"], event["involvedObject"]["name"]) == ("KeyUnreadable", "small")


def test_profile_is_found_on_a_later_page_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PAGE_SIZE", 2)
    api = FakeApi()
    for k in range(4):
        put_profile(api, f"other-{k}", targetRef={"name": f"other-{k}"})
    put_served(api)
    (seen,) = observe(api)
    assert seen.profile.metadata.name == "small"
    pages = [r for r in api.requests if r.path == path_of("kvregistryprofiles")]
    assert [each.query.get("limit") for each in pages] == ["2"] * 3


def test_profiles_of_other_targets_are_not_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    api = served()
    for k in range(4):
        put_profile(api, f"other-{k}", targetRef={"name": f"other-{k}"})
    read: list[str] = []

    def note(manifest: Manifest) -> KVRegistryProfile:
        read.append(manifest["metadata"]["name"])
        return parse_profile(manifest)

    monkeypatch.setattr(observer_module, "parse_profile", note)
    observe(api)
    assert read == ["small"]


def test_status_that_cannot_be_parsed_counts_as_none() -> None:
    api = served()
    api.objects[PROFILE_PATH]["status"] = {"conditions": [{"type": "Enlightened"}]}
    (seen,) = observe(api)
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
    (seen,) = observe(api)
    (job,) = seen.fit_jobs
    assert job.answer is not None
    assert job.answer.short_by_bytes == 1
    assert [pod.name for pod in seen.pods] == [f"{TARGET}-0"]
