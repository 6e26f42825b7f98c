"""Cases 64 and 69: memory stays within the plan, and a profile that does not fit is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cases.server import MODEL

MIB = 1 << 20
# Growth besides states and pages: the heaps of the interpreter and of torch, which release chunks
# late. Measured: 4 MiB in all after 100 sessions, of which 0.8 MiB after the 20th. Sessions that
# leaked one state each would add 11 MiB, sessions that leaked their pages 37 MiB.
HEAP_BYTES = 4 * MIB
# All sessions together need six times the pages of the pool.
PROFILE = ("--lanes", "2", "--entries", "4", "--max-context", "1024", "--kv-pages", "48")
NUM_SESSIONS = 100

reads_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="needs /proc/PID/status"
)


def _kvreg(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvreg_service", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _plan(*options: str) -> dict[str, Any]:
    """Return the output of `kvreg plan`."""
    return dict(json.loads(_kvreg("plan", "--json", *options).stdout))


@contextmanager
def _serving(*options: str) -> Iterator[tuple[httpx.Client, int]]:
    """A ready server process; yields a client and the process id."""
    command = [sys.executable, "-m", "kvreg_service", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.Client(base_url=url, timeout=60) as client:
                yield client, process.pid
        finally:
            process.terminate()


def _rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return int(kib) * 1024


def _play_session(client: httpx.Client, number: int) -> None:
    text = f"Ticket {number}. " + "The notes are updated once a week. " * 15
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    client.post("/v1/chat/completions", json=body).raise_for_status()


@reads_proc
def test_case_64_hundred_sessions_use_no_more_memory_than_planned() -> None:
    with _serving("--log-level", "error", *PROFILE) as (client, pid):
        # After the first request, libraries and weights are in memory; states and pages are not.
        _play_session(client, 0)
        before = _rss_bytes(pid)
        for number in range(1, NUM_SESSIONS + 1):
            _play_session(client, number)
        grown = _rss_bytes(pid) - before
        registry = client.get("/v1/registry").json()
    plan = _plan(*PROFILE)
    assert registry["totals"]["finished"] == NUM_SESSIONS + 1
    assert grown <= plan["state_bytes"] + plan["kv_bytes"] + HEAP_BYTES


TOO_LARGE = {
    "states": ("--lanes", "4", "--entries", "60", "--memory-gib", "0.01"),
    "one context": ("--max-context", "4096", "--memory-gib", "0.005"),
    "pages": ("--kv-pages", "100000", "--memory-gib", "0.5"),
}


@pytest.mark.parametrize("options", TOO_LARGE.values(), ids=TOO_LARGE)
def test_case_69_startup_that_does_not_fit_is_refused_with_the_byte_counts(
    options: tuple[str, ...],
) -> None:
    refused = _kvreg("serve", "--port", "0", *options)
    plan = _plan(*options)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert plan["required_bytes"] - plan["available_bytes"] == plan["short_by_bytes"] > 0
    for name in ("required_bytes", "available_bytes", "short_by_bytes"):
        assert f"{plan[name]} " in refused.stderr
