"""The operator is alive while the resync of any namespace succeeds."""

from __future__ import annotations

import asyncio
import socket

import httpx

from kvreg_operator.watch.liveness import PROBE_PATH, Liveness, serve_probe

LIMIT_S = 60.0
FORBIDDEN = "GET /apis/kvreg.dev/v1alpha1: 403 Forbidden"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def new_liveness() -> tuple[Liveness, Clock]:
    clock = Clock()
    return Liveness(clock, limit_s=LIMIT_S), clock


def probe(liveness: Liveness) -> httpx.Response:
    """Send the request of the kubelet."""

    async def run() -> httpx.Response:
        port = free_port()
        async with (
            serve_probe(liveness, "127.0.0.1", port),
            httpx.AsyncClient(trust_env=False) as http,
        ):
            return await http.get(f"http://127.0.0.1:{port}{PROBE_PATH}")

    return asyncio.run(run())


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def test_start_has_the_whole_limit() -> None:
    liveness, clock = new_liveness()
    clock.now_s += LIMIT_S
    assert liveness.find_failure() is None


def test_failures_within_the_limit_are_no_failure_of_the_operator() -> None:
    liveness, clock = new_liveness()
    for _ in range(4):
        clock.now_s += 15
        liveness.note_failure("chat", "503 Service Unavailable")
    assert liveness.find_failure() is None


def test_no_success_within_the_limit_is_a_failure_with_its_reason() -> None:
    liveness, clock = new_liveness()
    liveness.note_failure("chat", FORBIDDEN)
    clock.now_s += LIMIT_S + 1
    assert liveness.find_failure() == f"no resync has succeeded for 61 s; chat: {FORBIDDEN}"


def test_resync_that_hangs_is_a_failure() -> None:
    liveness, clock = new_liveness()
    liveness.note_success("chat")
    clock.now_s += LIMIT_S + 1
    assert liveness.find_failure() == "no resync has succeeded for 61 s"


def test_success_ends_the_failure() -> None:
    liveness, clock = new_liveness()
    liveness.note_failure("chat", FORBIDDEN)
    clock.now_s += LIMIT_S + 1
    liveness.note_success("chat")
    assert liveness.find_failure() is None
    clock.now_s += LIMIT_S + 1
    assert FORBIDDEN not in (liveness.find_failure() or "")


def test_namespace_that_is_refused_for_good_does_not_restart_the_others() -> None:
    liveness, clock = new_liveness()
    for _ in range(100):
        liveness.note_failure("lost", FORBIDDEN)
        liveness.note_success("serving")
        clock.now_s += 15
        assert liveness.find_failure() is None


def test_namespaces_that_all_fail_are_all_named() -> None:
    liveness, clock = new_liveness()
    liveness.note_failure("serving", "500 Internal Server Error")
    liveness.note_failure("lost", FORBIDDEN)
    clock.now_s += LIMIT_S + 1
    failure = liveness.find_failure() or ""
    assert failure.endswith(f"; lost: {FORBIDDEN}; serving: 500 Internal Server Error")


def test_probe_of_a_live_operator_is_ok() -> None:
    liveness, _ = new_liveness()
    answer = probe(liveness)
    assert (answer.status_code, answer.text) == (200, "ok\n")


def test_probe_of_a_dead_operator_says_why() -> None:
    liveness, clock = new_liveness()
    liveness.note_failure("chat", FORBIDDEN)
    clock.now_s += LIMIT_S + 1
    answer = probe(liveness)
    assert answer.status_code == 500
    assert answer.text == f"no resync has succeeded for 61 s; chat: {FORBIDDEN}\n"
