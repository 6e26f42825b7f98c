"""``kvreg serve`` as a subprocess that writes its output to a file.

Owns the process. The requests are in ``mix``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

_TIMEOUT_S = 60.0
_POLL_S = 0.1


@contextlib.contextmanager
def running_engine(folder: Path, *options: str) -> Iterator[str]:
    """Serve the bundled model on a free loopback port; yields the URL once the server is ready.

    Raises:
        RuntimeError: The server did not become ready.
    """
    output = folder / "engine.out"
    # KVREG_* variables of the developer must not change the settings of the server.
    environment = {name: value for name, value in os.environ.items() if "KVREG_" not in name}
    with output.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvreg_service", "serve", "--port", "0", *options],
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdout=written,
            stderr=written,
        )
    try:
        yield _wait_until_ready(output, process)
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(output: Path, process: subprocess.Popen[bytes]) -> str:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        url, end, _ = output.read_text().partition("\n")
        with contextlib.suppress(httpx.TransportError):
            if end and httpx.get(f"{url}/readyz").is_success:
                return url
        time.sleep(_POLL_S)
    raise RuntimeError(f"kvreg did not become ready: {output.read_text()}")
