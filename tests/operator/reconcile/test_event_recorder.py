"""An event is created once, and counts its repetitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.operator.cluster_objects import PROFILE_PATH, clients, put_profile, read
from tests.operator.fake_api import FakeApi, Request, path_of

from kvreg_operator.plan.actions import Event
from kvreg_operator.reconcile.event_recorder import (
    FORGET_AFTER_S,
    MAX_MESSAGE_LENGTH,
    REPEAT_AFTER_S,
    EventRecorder,
)

BUSY = Event("Normal", "Busy", "chat-0 runs requests")
NOW_S = 1_800_000_000.0


def record(
    events: Iterable[tuple[float, Event]], api: FakeApi | None = None, *, was_done: bool = False
) -> list[Request]:
    """Record events at times; return what was written."""
    api = api or FakeApi()
    put_profile(api)

    async def run() -> None:
        async with clients(api) as (cluster, _):
            now_s = NOW_S
            recorder = EventRecorder(cluster, lambda: now_s, "here")
            for later_s, event in events:
                now_s = NOW_S + later_s
                await recorder.record(read(api).metadata, event, was_done=was_done)

    asyncio.run(run())
    return api.writes


def test_event_is_about_the_profile() -> None:
    (asked,) = record([(0, BUSY)])
    assert (asked.method, asked.path) == ("POST", path_of("events"))
    body = dict(asked.body)
    assert body.pop("metadata")["namespace"] == "serving"
    assert body == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "kvreg.dev/v1alpha1",
            "kind": "KVRegistryProfile",
            "name": "small",
            "namespace": "serving",
            "uid": "uid-of-small",
        },
        "type": "Normal",
        "reason": "Busy",
        "message": "chat-0 runs requests",
        "firstTimestamp": "2027-01-15T08:00:00Z",
        "lastTimestamp": "2027-01-15T08:00:00Z",
        "count": 1,
        "source": {"component": "kvreg-operator"},
        "reportingComponent": "kvreg-operator",
        "reportingInstance": "here",
    }


def test_repeated_event_is_not_written() -> None:
    assert len(record([(seconds, BUSY) for seconds in range(500)])) == 1


def test_event_of_an_action_is_counted_each_time() -> None:
    writes = record([(seconds, BUSY) for seconds in range(3)], was_done=True)
    assert [write.body["count"] for write in writes] == [1, 2, 3]


def test_event_that_continues_raises_its_count() -> None:
    first, second = record([(0, BUSY), (REPEAT_AFTER_S, BUSY)])
    assert (second.method, second.path) == (
        "PATCH",
        path_of("events", first.body["metadata"]["name"]),
    )
    assert second.body == {"count": 2, "lastTimestamp": "2027-01-15T08:10:00Z"}


def test_event_that_has_expired_is_created_again() -> None:
    writes = record([(0, BUSY), (FORGET_AFTER_S, BUSY)])
    assert [request.method for request in writes] == ["POST", "POST"]


def test_event_that_was_deleted_is_created_again() -> None:
    api = FakeApi()
    api.refusals["patch events"] = 404
    writes = record([(0, BUSY), (REPEAT_AFTER_S, BUSY)], api)
    assert [request.method for request in writes] == ["POST", "PATCH", "POST"]


def test_other_message_is_another_event() -> None:
    other = Event("Normal", "Busy", "chat-1 runs requests")
    assert len(record([(0, BUSY), (1, other)])) == 2


def test_event_that_was_lost_is_retried_with_the_next_one() -> None:
    api = FakeApi()
    api.refusals["create events"] = 500
    assert len(record([(0, BUSY), (1, BUSY)], api)) == 2


def test_long_message_is_cut() -> None:
    (asked,) = record([(0, Event("Warning", "Failing", "x" * 5000))])
    assert len(asked.body["message"]) == MAX_MESSAGE_LENGTH


def test_profile_itself_is_not_written() -> None:
    api = FakeApi()
    record([(0, BUSY)], api)
    version = api.objects[PROFILE_PATH]["metadata"]["resourceVersion"]
    assert version == "101"
