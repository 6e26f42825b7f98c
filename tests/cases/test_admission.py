"""Cases 67 and 70: a full queue, and requests that do not fit beside running ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import httpx
import pytest
from tests.cases.clock import Clock
from tests.cases.profiles import Profile, whole_and_streamed
from tests.cases.server import MODEL, Message, OpenStream, Serve, Server
from tests.cases.session import Session

QUEUE_LIMIT = 3
HELLO: list[Message] = [{"role": "user", "content": "Hello!"}]
SIZES = pytest.mark.parametrize(
    "profile", [Profile(1, 0), Profile(1, 1), Profile(2, 1, "drop"), Profile(4, 2)], ids=str
)


def _post(server: Server, number: int, **options: Any) -> httpx.Response:
    messages = [{"role": "user", "content": f"Hello! My locker code is {2000 + number}."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, **options}
    return server.post_raw(json.dumps(body))


def _assert_refused(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    assert int(response.headers["Retry-After"]) >= 1
    error = response.json()["error"]
    assert error["code"] == code
    assert error["message"]


def _occupy_every_lane(server: Server, stack: ExitStack) -> None:
    for _ in range(server.profile.lanes):
        stack.enter_context(server.streaming(HELLO, retain_prefix=False))


@SIZES
@whole_and_streamed
def test_case_70_requests_beyond_busy_lanes_and_a_full_queue_are_refused(
    serve: Serve, profile: Profile, stream: bool
) -> None:
    server = serve(profile, queue_limit=QUEUE_LIMIT)
    count = QUEUE_LIMIT + 5
    with ThreadPoolExecutor(count) as clients, ExitStack() as busy:
        _occupy_every_lane(server, busy)
        sent = [clients.submit(_post, server, n, stream=stream) for n in range(count)]
        # No lane is free, so that only refused requests can end.
        refused = list(islice(as_completed(sent), 5))
        server.wait_until("queued", QUEUE_LIMIT)
        for response in refused:
            _assert_refused(response.result(), 429, "server_overloaded")
        busy.close()
        served = [response.result() for response in sent if response not in refused]
    assert [response.status_code for response in served] == [200] * QUEUE_LIMIT


@SIZES
def test_case_70_concurrent_requests_to_idle_lanes_are_served_or_refused(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile, queue_limit=QUEUE_LIMIT)
    room = profile.lanes + QUEUE_LIMIT
    with ThreadPoolExecutor(room + 5) as clients:
        sent = [clients.submit(_post, server, number) for number in range(room + 5)]
        responses = [response.result() for response in sent]
    refused = [response for response in responses if response.status_code != 200]
    for response in refused:
        _assert_refused(response, 429, "server_overloaded")
    assert len(refused) <= 5


def test_case_70_refused_request_is_served_once_a_lane_is_free(serve: Serve) -> None:
    server = serve(queue_limit=0)
    with ExitStack() as busy:
        _occupy_every_lane(server, busy)
        _assert_refused(_post(server, 1), 429, "server_overloaded")
    server.settle()
    assert _post(server, 1).status_code == 200


@SIZES
@whole_and_streamed
def test_case_70_requests_that_exceed_the_queue_timeout_are_refused(
    serve: Serve, profile: Profile, clock: Clock, stream: bool
) -> None:
    server = serve(profile, queue_limit=QUEUE_LIMIT, queue_timeout_s=30.0)
    with ThreadPoolExecutor(QUEUE_LIMIT) as clients, ExitStack() as busy:
        _occupy_every_lane(server, busy)
        sent = [clients.submit(_post, server, n, stream=stream) for n in range(QUEUE_LIMIT)]
        server.wait_until("queued", QUEUE_LIMIT)
        clock.advance(31.0)
        for response in sent:
            _assert_refused(response.result(), 503, "request_queue_timeout")
        assert server.registry()["running"] == profile.lanes


CONTEXT_TOKENS = 2048
# With one lane, the lane is missing. With two, one is idle, but all pages are reserved for the
# stream.
BUSY = pytest.mark.parametrize(
    "profile", [Profile(1, 1), Profile(1, 2, "drop"), Profile(2, 1), Profile(2, 2, "drop")], ids=str
)
LONG = json.dumps(
    {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Repeat these words: falcon river maple. " * 70}],
        "max_tokens": 8,
    }
)


def _serve_full_registry(serve: Serve, profile: Profile, **settings: Any) -> Server:
    """Return a server with a kept session in every place and pages for one full context."""
    server = serve(profile, max_context=CONTEXT_TOKENS, kv_pages=CONTEXT_TOKENS // 64, **settings)
    for number in range(profile.lanes + profile.entries):
        Session(server, 670 + number, num_notes=2).begin()
    assert len(server.kept()) == profile.entries
    return server


@contextmanager
def _long_request_beside_a_stream(
    server: Server,
) -> Iterator[tuple[Future[httpx.Response], OpenStream]]:
    """A request that cannot run before the stream ends, which is on exit."""
    with ThreadPoolExecutor(1) as client, server.streaming(HELLO, retain_prefix=False) as stream:
        sent = client.submit(server.post_raw, LONG)
        server.wait_until("queued", 1)
        # The request would finish within these steps if it ran.
        stream.read(100)
        registry = server.registry()
        assert (registry["running"], registry["queued"]) == (1, 1)
        yield sent, stream


@BUSY
def test_case_67_long_request_waits_for_a_stream_and_is_then_served(
    serve: Serve, profile: Profile
) -> None:
    server = _serve_full_registry(serve, profile)
    with _long_request_beside_a_stream(server) as (sent, _):
        assert not sent.done()
    assert sent.result().status_code == 200


@BUSY
def test_case_67_long_request_that_exceeds_the_queue_timeout_is_refused(
    serve: Serve, profile: Profile, clock: Clock
) -> None:
    server = _serve_full_registry(serve, profile, queue_timeout_s=30.0)
    with _long_request_beside_a_stream(server) as (sent, stream):
        clock.advance(31.0)
        _assert_refused(sent.result(), 503, "request_queue_timeout")
        stream.read()


@BUSY
def test_case_67_stream_beside_a_queued_long_request_has_the_same_text_as_alone(
    serve: Serve, profile: Profile
) -> None:
    with serve().streaming(HELLO) as stream:
        alone = stream.read(200)
    server = _serve_full_registry(serve, profile)
    with _long_request_beside_a_stream(server) as (_, stream):
        beside = stream.read(100)
    length = min(len(alone), len(beside))
    assert beside[:length] == alone[:length]


def _sequences_at_rest(server: Server) -> set[int]:
    registry = server.registry()
    places = [lane for lane in registry["lanes"] if lane["state"] == "retained"]
    return {place["sequence_id"] for place in [*places, *server.kept()]}


@BUSY
def test_case_67_queued_long_request_evicts_no_kept_session(serve: Serve, profile: Profile) -> None:
    server = _serve_full_registry(serve, profile)
    with server.streaming(HELLO, retain_prefix=False):
        before = _sequences_at_rest(server)
    server.settle()
    with _long_request_beside_a_stream(server):
        during = _sequences_at_rest(server)
    assert len(before) == profile.lanes + profile.entries - 1
    assert during == before
