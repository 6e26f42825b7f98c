"""The program as a process: its first line, its exit status and its shutdown."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import httpx
import pytest

pytestmark = pytest.mark.slow(reason="starts the program as a process in each test")


def kvreg(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvreg_service", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_serve_prints_its_address_serves_requests_and_exits_with_status_0() -> None:
    with kvreg("serve", "--port", "0", "--memory-gib", "0.1") as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        response = httpx.post(
            f"{url}/v1/chat/completions",
            json={
                "model": "kvreg-reference",
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 3,
            },
            timeout=60,
        )
        process.send_signal(signal.SIGTERM)
        log, errors = process.communicate(timeout=60)
    assert response.json()["usage"]["completion_tokens"] <= 3
    assert (process.returncode, errors) == (0, "")
    assert {"time", "level", "logger", "message"} <= set(json.loads(log.splitlines()[-1]))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["/nowhere", "--lanes", "0"], "lanes = 0"),
        (["--memory-gib", "0.0001"], "short by"),
    ],
    ids=str,
)
def test_refused_start_has_status_2_one_reason_and_no_address(
    arguments: list[str], reason: str
) -> None:
    with kvreg("serve", "--port", "0", *arguments) as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    assert reason in errors
    assert "Traceback" not in errors


def test_port_in_use_is_refused_with_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with kvreg("serve", "--port", port) as process:
            output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    assert f"port = {port}" in errors
