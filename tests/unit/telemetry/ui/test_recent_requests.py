"""Which recent requests a tenant sees, and the counts over all of them."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from tests.unit.telemetry.ended_requests import FAILED, FINISHED, TIMED_OUT

from kvreg_service.core.labels import Attach, Tail
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.ui.recent_requests import MAX_SHOWN, RecentRequests, ReturnCounts


@pytest.fixture
def recent() -> RecentRequests:
    return RecentRequests(now_s=lambda: 20.0)


def of(tenant: str, number: int = 0) -> RequestRecord:
    return replace(FINISHED, tenant=tenant, request_id=f"{tenant}-{number}")


def ids(recent: RecentRequests, tenant: str | None) -> list[str]:
    return [request.request_id for request in recent.show(tenant).requests]


def test_request_is_shown_with_its_numbers(recent: RecentRequests) -> None:
    recent.request_ended(FINISHED)
    (shown,) = recent.show(None).requests
    assert asdict(shown) == {
        "request_id": "chatcmpl-1",
        "tenant": FINISHED.tenant,
        "ended_ago_s": 6.0,
        "outcome": "finished",
        "error_code": None,
        "finish_reason": "stop",
        "tail": "assistant",
        "prompt_tokens": 100,
        "cached_tokens": 90,
        "computed_tokens": 10,
        "completion_tokens": 3,
        "reuse_path": "append_frontier",
        "attach": "registry",
        "lane_id": 1,
        "queue_s": 0.5,
        "ttft_s": 1.5,
        "total_s": 4.0,
    }


def test_request_without_a_lane_has_nothing_of_one(recent: RecentRequests) -> None:
    recent.request_ended(TIMED_OUT)
    (shown,) = recent.show(None).requests
    assert (shown.error_code, shown.cached_tokens, shown.reuse_path, shown.queue_s) == (
        "request_queue_timeout",
        None,
        None,
        None,
    )


def test_newest_are_shown_first_and_old_ones_no_more(recent: RecentRequests) -> None:
    for number in range(MAX_SHOWN + 5):
        recent.request_ended(of("a", number))
    assert ids(recent, None) == [f"a-{number}" for number in range(MAX_SHOWN + 4, 4, -1)]


def test_tenant_sees_its_own_only(recent: RecentRequests) -> None:
    recent.request_ended(of("a"))
    recent.request_ended(of("b"))
    assert (ids(recent, "a"), ids(recent, "b"), ids(recent, "c")) == (["a-0"], ["b-0"], [])
    assert recent.show("c").counts == ReturnCounts()


def test_tenant_sees_its_own_though_others_are_busy(recent: RecentRequests) -> None:
    recent.request_ended(of("a"))
    for number in range(5 * MAX_SHOWN):
        recent.request_ended(of("b", number))
    assert ids(recent, "a") == ["a-0"]


def test_what_is_kept_is_bounded(recent: RecentRequests) -> None:
    recent.request_ended(of("a"))
    for number in range(1000):
        recent.request_ended(of("b", number))
    assert ids(recent, "a") == []
    assert recent.show("a").counts.requests == 1


def test_returns_are_counted_among_all_requests(recent: RecentRequests) -> None:
    user_tail = replace(FINISHED, tail=Tail.USER)
    assert FINISHED.admission is not None
    on_its_lane = replace(FINISHED, admission=replace(FINISHED.admission, attach=Attach.NONE))
    for record in (FINISHED, FINISHED, user_tail, on_its_lane, FAILED, TIMED_OUT):
        recent.request_ended(record)
    counts = ReturnCounts(requests=6, assistant_tail=5, from_registry=4, returned=3)
    assert recent.show(None).counts == counts
    assert recent.show(FINISHED.tenant).counts == counts
