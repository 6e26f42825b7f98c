"""What the kubelet is answered when it asks whether the operator is alive.

Owns the path and the statuses. What deafness is, ``hearing`` says.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from kvreg_operator.watch.hearing import Hearing

PROBE_PATH = "/healthz"

_logger = logging.getLogger(__name__)


@asynccontextmanager
async def serve_probe(hearing: Hearing, host: str, port: int) -> AsyncIterator[None]:
    """Serve the probe while the context lasts: 200, or 500 with what is not heard any more."""

    async def answer(_: web.Request) -> web.Response:
        if (deafness := hearing.find_deafness()) is None:
            return web.Response(text="hears\n")
        _logger.error("the probe fails: %s", deafness)
        return web.Response(status=500, text=f"{deafness}\n")

    app = web.Application()
    app.router.add_get(PROBE_PATH, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
