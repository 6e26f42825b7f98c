"""One reconcile: the status first, then the actions, each with its event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
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
    refresh,
)
from tests.operator.fake_api import FakeApi, Request, path_of
from tests.operator.objects import NOW_S, TARGET

from kvreg_operator.clients.errors import Conflict, OperatorError, PermanentError
from kvreg_operator.observe.observer import Observer
from kvreg_operator.reconcile.event_recorder import EventRecorder
from kvreg_operator.reconcile.execution import Executor
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.reconciler import AFTER_ACTION_S, WHILE_WAITING_S, Reconciler

STATUS_PATH = f"{PROFILE_PATH}/status"


def reconcile(
    api: FakeApi,
    num_times: int = 1,
    *,
    registry: CollectorRegistry | None = None,
    between: Callable[[], object] = lambda: None,
) -> float | None:
    """Reconcile a number of times; return the delay that the last one requests."""

    async def run() -> float | None:
        async with clients(api) as (cluster, engines):
            refresh(api)
            metrics = OperatorMetrics(registry or CollectorRegistry(), lambda: 0.0)
            recorder = EventRecorder(cluster, lambda: NOW_S, "here")
            observer = Observer(cluster, engines, recorder.warn)
            executor = Executor(cluster, engines.drain, recorder)
            reconciler = Reconciler(observer, executor, metrics, lambda: NOW_S)
            delay_s: float | None = None
            for number in range(num_times):
                try:
                    delay_s = await reconciler.reconcile(KEY)
                except OperatorError:
                    if number == num_times - 1:
                        raise
                between()
            return delay_s

    return asyncio.run(run())


def to_roll() -> FakeApi:
    """Return a cluster whose idle pod does not serve the profile yet."""
    api = FakeApi()
    put_profile(api)
    put_target(api)
    put_pod(api)
    return api


def reasons(api: FakeApi) -> list[str]:
    return [request.body["reason"] for request in api.writes if request.path == path_of("events")]


def order(api: FakeApi) -> list[tuple[str, str]]:
    return [(each.method, each.path.split("/serving/")[1].split("/")[0]) for each in api.writes]


def changes(requests: list[Request]) -> list[Request]:
    """Return the writes that are neither status nor events."""
    reports = (STATUS_PATH, path_of("events"))
    return [request for request in requests if request.is_write and request.path not in reports]


def test_status_is_written_before_anything_is_touched() -> None:
    api = to_roll()
    reconcile(api)
    assert order(api) == [
        ("PATCH", "kvregistryprofiles"),
        ("POST", "events"),
        ("PATCH", "configmaps"),
        ("POST", "events"),
        ("PATCH", "statefulsets"),
        ("POST", "events"),
    ]


def test_status_goes_to_its_subresource_in_the_version_that_was_read() -> None:
    api = to_roll()
    version = api.objects[PROFILE_PATH]["metadata"]["resourceVersion"]
    reconcile(api)
    (asked,) = [request for request in api.writes if request.path == STATUS_PATH]
    assert asked.content_type == "application/merge-patch+json"
    assert asked.body["metadata"] == {"resourceVersion": version}
    assert set(asked.body) == {"metadata", "status"}


def test_served_profile_is_written_once_and_then_never() -> None:
    api = FakeApi()
    put_served(api)
    reconcile(api)
    num_writes = len(api.writes)
    assert reconcile(api, num_times=5) is None
    assert len(api.writes) == num_writes


def test_field_that_ended_is_removed_from_the_status() -> None:
    api = to_roll()
    api.engine.running = 1
    reconcile(api)
    assert "waitingFor" in api.objects[PROFILE_PATH]["status"]
    api.engine.running = 0
    reconcile(api)
    assert "waitingFor" not in api.objects[PROFILE_PATH]["status"]


def test_profile_that_was_edited_since_the_observation_is_observed_again_first() -> None:
    api = to_roll()
    api.refusals["patch kvregistryprofiles"] = 409
    with pytest.raises(Conflict):
        reconcile(api)
    assert changes(api.requests) == []
    assert reasons(api) == []


def test_profile_that_was_edited_meanwhile_is_observed_again_also_if_its_status_stays() -> None:
    api = to_roll()
    reconcile(api)
    num_requests = len(api.requests)
    original = api.answer_engine

    def pause_meanwhile(request: web.Request) -> web.Response | None:
        answer = original(request)
        paused = api.objects[PROFILE_PATH]["spec"].get("rollout") is not None
        if answer is not None and not paused:
            stored = api.objects[PROFILE_PATH]
            spec = {**stored["spec"], "rollout": {"paused": True}}
            api.put(PROFILE_PATH, {**stored, "spec": spec})
        return answer

    api.answer_engine = pause_meanwhile  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        reconcile(api)
    assert changes(api.requests[num_requests:]) == []
    assert not api.engine.is_draining


def test_status_that_stays_is_written_without_making_a_version() -> None:
    api = to_roll()
    reconcile(api)
    version = api.objects[PROFILE_PATH]["metadata"]["resourceVersion"]
    reconcile(api)
    assert api.engine.is_draining
    assert api.objects[PROFILE_PATH]["metadata"]["resourceVersion"] == version


def test_profile_that_was_deleted_since_the_observation_is_no_error() -> None:
    api = to_roll()
    api.refusals["patch kvregistryprofiles"] = 404
    assert reconcile(api) is None
    assert changes(api.requests) == []


def test_deleted_profile_leaves_everything_as_it_is() -> None:
    api = FakeApi()
    put_served(api)
    api.remove(PROFILE_PATH)
    reconcile(api)
    assert api.writes == []


def test_reconcile_ends_with_an_action_that_is_refused_and_records_it() -> None:
    api = to_roll()
    api.refusals["patch configmaps"] = 403
    with pytest.raises(PermanentError):
        reconcile(api)
    assert [request.path for request in changes(api.requests)][1:] == []
    assert reasons(api) == ["Accepted", "ActionFailed"]
    assert "status" in api.objects[PROFILE_PATH]


def crashing() -> FakeApi:
    """Return a cluster where no engine can report whether the profile fits."""
    api = FakeApi()
    put_profile(api)
    put_target(api)
    put_pod(api, started=False)
    return api


@pytest.mark.parametrize("status", [403, 422])
def test_job_that_may_not_be_created_does_not_hold_the_rollout(status: int) -> None:
    api = crashing()
    api.refusals["create jobs"] = status
    reconcile(api, num_times=3)
    assert [r.path for r in changes(api.requests)].count(path_of("jobs")) == 1
    assert TARGET_PATH in [r.path for r in changes(api.requests)]
    assert {"ActionFailed", "FitUnknown"} <= set(reasons(api))
    conditions = api.objects[PROFILE_PATH]["status"]["conditions"]
    (progressing,) = [each for each in conditions if each["type"] == "Progressing"]
    assert str(status) in progressing["message"]


def test_job_that_could_not_be_created_leaves_nothing_to_do_once_the_profile_is_served() -> None:
    api = crashing()
    api.refusals["create jobs"] = 403

    def serve() -> None:
        if path_of("configmaps", f"{TARGET}-profile-{hash_of()}") in api.objects:
            put_pod(api, hash_of())
            refresh(api)

    reconcile(api, num_times=8, between=serve)
    assert reasons(api).count("Served") == 1
    asked = [(r.method, r.path) for r in api.writes if "/jobs" in r.path]
    assert asked == [("POST", path_of("jobs"))]


def test_job_of_another_owner_is_an_event_and_not_created_again() -> None:
    api = crashing()

    def take_labels() -> None:
        for path in api.objects:
            if "/jobs/" in path:
                api.objects[path]["metadata"]["labels"] = {}

    reconcile(api, num_times=5, between=take_labels)
    assert [r.path for r in changes(api.requests)].count(path_of("jobs")) == 2
    assert TARGET_PATH in [r.path for r in changes(api.requests)]


def test_lost_events_change_nothing() -> None:
    api = to_roll()
    api.refusals["create events"] = 403
    reconcile(api)
    assert [request.path for request in changes(api.requests)][-1] == TARGET_PATH


def test_rollout_is_reconciled_again_soon() -> None:
    assert reconcile(to_roll()) == AFTER_ACTION_S


def test_busy_engine_is_observed_again_soon() -> None:
    api = to_roll()
    api.engine.running = 1
    assert reconcile(api) == WHILE_WAITING_S
    assert changes(api.requests) == []


def test_paused_profile_waits_for_an_event() -> None:
    api = to_roll()
    put_profile(api, rollout={"paused": True})
    assert reconcile(api) is None


def test_wait_that_continues_is_one_event() -> None:
    api = to_roll()
    api.engine.running = 1
    reconcile(api, num_times=5)
    assert reasons(api).count("Busy") == 1


def test_whole_roll_reaches_the_pod() -> None:
    api = to_roll()
    reconcile(api, num_times=3)
    methods = [(request.method, request.path) for request in changes(api.requests)]
    assert methods[-1] == ("DELETE", path_of("pods", "chat-0"))
    assert reasons(api)[-2:] == ["Draining", "PodReplaced"]


def test_reconciles_and_profiles_are_counted() -> None:
    api, registry = FakeApi(), CollectorRegistry()
    put_served(api)
    reconcile(api, num_times=2, registry=registry)
    results = {
        result: registry.get_sample_value("kvreg_operator_reconciles_total", {"result": result})
        for result in ("changed", "unchanged")
    }
    assert results == {"changed": 1, "unchanged": 1}
    ready = registry.get_sample_value("kvreg_operator_profiles", {"condition": "Ready"})
    assert ready == 1


def test_profile_that_is_gone_is_not_shown_any_more() -> None:
    api, registry = FakeApi(), CollectorRegistry()
    put_served(api)

    def remove() -> None:
        if PROFILE_PATH in api.objects:
            api.remove(PROFILE_PATH)

    reconcile(api, num_times=2, registry=registry, between=remove)
    assert registry.get_sample_value("kvreg_operator_profiles", {"condition": "Ready"}) == 0
