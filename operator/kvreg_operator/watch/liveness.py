"""Whether the operator is alive: it can list what it watches.

Owns the rule, and the probe of the kubelet. Watches do not count: the resync queues every target
without them. Reconciles do not count: each has a timeout, and is retried.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

PROBE_PATH = "/healthz"

_logger = logging.getLogger(__name__)


class Liveness:
    """When a resync last succeeded. ``clock`` returns monotonic seconds.

    The resync of any namespace counts. A namespace without a Role fails for good, and a restart
    would interrupt the others.
    """

    def __init__(self, clock: Callable[[], float], *, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._succeeded_s = clock()
        self._failures: dict[str, str] = {}

    def note_success(self, namespace: str) -> None:
        """Note that all watched kinds of a namespace were listed."""
        self._succeeded_s = self._clock()
        self._failures.pop(namespace, None)

    def note_failure(self, namespace: str, failure: str) -> None:
        """Note why a resync of a namespace failed."""
        self._failures[namespace] = failure

    def find_failure(self) -> str | None:
        """Return why the operator is not alive, as a sentence, or None."""
        age_s = self._clock() - self._succeeded_s
        if age_s <= self._limit_s:
            return None
        reasons = "".join(f"; {name}: {text}" for name, text in sorted(self._failures.items()))
        return f"no resync has succeeded for {age_s:.0f} s{reasons}"


@asynccontextmanager
async def serve_probe(liveness: Liveness, host: str, port: int) -> AsyncIterator[None]:
    """Serve the probe while the context lasts: 200, or 500 with the reason."""

    async def answer(_: web.Request) -> web.Response:
        if (failure := liveness.find_failure()) is None:
            return web.Response(text="ok\n")
        _logger.error("the probe fails: %s", failure)
        return web.Response(status=500, text=f"{failure}\n")

    app = web.Application()
    app.router.add_get(PROBE_PATH, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
