"""``kvreg serve`` as a process of its own on a free port of the loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05


@contextlib.contextmanager
def running_kvreg() -> Iterator[str]:
    """Serve the bundled model with the default settings; yields the address.

    Raises:
        RuntimeError: the server did not become ready.
    """
    # Settings of whoever runs the bench must not change what is measured.
    environment = {name: value for name, value in os.environ.items() if "KVREG_" not in name}
    server = subprocess.Popen(
        [sys.executable, "-m", "kvreg_service", "serve", "--port", "0", "--log-level", "error"],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None, "the process was started with a pipe"
        url = server.stdout.readline().strip()
        _wait_until_ready(url)
        yield url
    finally:
        server.terminate()
        server.wait(_STOP_TIMEOUT_S)


def _wait_until_ready(url: str) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while url and time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").is_success:
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"kvreg did not become ready at {url or 'any address'}")
