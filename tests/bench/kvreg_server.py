"""``kvreg serve`` as a separate process on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO

import httpx

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05


@contextlib.contextmanager
def running_kvreg(
    *options: str, log_level: str = "error", log: queue.SimpleQueue[str] | None = None
) -> Iterator[str]:
    """Serve the bundled model with default settings and ``options``; yield the address.

    Effects: appends the lines of the server's log to ``log``.

    Raises:
        RuntimeError: the server did not become ready.
    """
    # KVREG_ variables of the caller's environment must not change what is measured.
    environment = {name: value for name, value in os.environ.items() if "KVREG_" not in name}
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "kvreg_service", "serve", "--port", "0"),
            *("--log-level", log_level, *options),
        ],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None, "stdout is not a pipe"
        url = server.stdout.readline().strip()
        _follow(server.stdout, log or queue.SimpleQueue())
        _wait_until_ready(url)
        yield url
    finally:
        server.terminate()
        server.wait(_STOP_TIMEOUT_S)


def _follow(lines: IO[str], log: queue.SimpleQueue[str]) -> None:
    """Forward lines to ``log`` until the pipe closes; a full pipe would block the server."""

    def forward() -> None:
        for line in lines:
            log.put(line)

    threading.Thread(target=forward, name="bench-log", daemon=True).start()


def _wait_until_ready(url: str) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while url and time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").is_success:
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"kvreg did not become ready at {url or 'any address'}")
