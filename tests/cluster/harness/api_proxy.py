"""A proxy between operator and API server that injects faults.

Owns a listening socket with a certificate of the cluster's CA, and the faults. All other requests
and watches are forwarded as streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from tests.cluster.harness.credentials import API_URL, NODE_ADDRESS, Credentials

_PORT = 7443
_CLOSING_S = 1.0
_HOP_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding"})


@dataclass(frozen=True)
class Fault:
    """A fault for requests of one resource.

    ``status`` is the HTTP status; None resets the connection. ``is_watch`` selects watches or other
    requests; None selects both. ``retry_after_s`` sets the Retry-After header.
    """

    resource: str
    status: int | None
    is_watch: bool | None = None
    retry_after_s: int | None = None

    def is_for(self, request: web.Request) -> bool:
        """Return whether the fault applies to the request."""
        is_watch = request.query.get("watch") in ("true", "1")
        parts = request.path.split("/")
        return self.resource in parts and self.is_watch in (None, is_watch)


class ApiProxy:
    """A proxy that runs in its own thread until it is closed."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._faults: tuple[Fault, ...] = ()
        self._loop = asyncio.new_event_loop()
        self._watches: set[asyncio.Task[Any]] = set()
        self.num_failed = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: web.AppRunner = self._run(self._start())

    @property
    def variables(self) -> tuple[str, str]:
        """The environment variables that make a pod use the proxy as the API server."""
        return (f"KUBERNETES_SERVICE_HOST={NODE_ADDRESS}", f"KUBERNETES_SERVICE_PORT={_PORT}")

    def fail(self, *faults: Fault) -> None:
        """Replace the injected faults, and cut the open watches. No argument removes all faults."""

        def change() -> None:
            self._faults = faults
            for watch in self._watches:
                watch.cancel()

        self._loop.call_soon_threadsafe(change)

    def close(self) -> None:
        """Stop the proxy and close its connections."""
        self.fail()
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(timeout=30)

    async def _start(self) -> web.AppRunner:
        trusted = ssl.create_default_context(cafile=str(self._credentials.authority))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusted, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        known = self._credentials
        own.load_cert_chain(known.certificate("server"), known.key("server"))
        await web.TCPSite(runner, NODE_ADDRESS, _PORT, ssl_context=own).start()
        return runner

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        # Further iterations of the event loop close the remaining connections.
        await asyncio.sleep(_CLOSING_S)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        for fault in self._faults:
            if fault.is_for(request):
                self.num_failed += 1
                return self._fail(request, fault)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            return await self._pass(request)
        finally:
            self._watches.discard(task)

    def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.status is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        headers = {}
        if fault.retry_after_s is not None:
            headers["retry-after"] = str(fault.retry_after_s)
        return web.json_response(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": "injected",
                "code": fault.status,
            },
            status=fault.status,
            headers=headers,
        )

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_HEADERS}
        async with self._session.request(
            request.method,
            f"{API_URL}{request.raw_path}",
            headers=headers,
            # For an empty body aiohttp would add a content type.
            data=await request.read() or None,
            allow_redirects=False,
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_HEADERS}
            response = web.StreamResponse(status=answer.status, headers=kept)
            # The client may have disconnected.
            with contextlib.suppress(ConnectionResetError):
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response
