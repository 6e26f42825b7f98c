"""Runs the application on a socket, and drains the engine before it stops.

Owns the socket, the signals and the order of the shutdown: refuse new requests, let running ones
finish within the drain timeout, fail the rest, close.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from kvreg_service.engine.interface.protocol import EngineProtocol

_logger = logging.getLogger(__name__)

_BACKLOG = 2048
# After the engine is idle, for responses to slow clients.
_FLUSH_TIMEOUT_S = 5
# Longer than the 60 s after which common load balancers and clients close an idle connection. If
# the server closed it first, a request could be on its way.
_KEEP_ALIVE_S = 75


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket; port 0 takes a free one.

    Clients can connect from then on, and wait until the application serves them.

    Raises:
        OSError: The address is not local, or the port is in use.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # asyncio disables Nagle's algorithm only if the socket has a protocol number; otherwise it
    # delays the last bytes of a response by 40 ms.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL of the socket."""
    host, port = listener.getsockname()[:2]
    return (
        f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
    )


def uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    """Build the configuration of every uvicorn server of this package, without its logging."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FLUSH_TIMEOUT_S,
    )


class DrainingServer(uvicorn.Server):
    """A server whose first SIGTERM or SIGINT drains the engine; the second one exits at once.

    While it drains, probes respond with their actual state and new requests with 503.
    """

    def __init__(self, app: ASGIApp, engine: EngineProtocol, *, drain_timeout_s: float) -> None:
        super().__init__(uvicorn_config(app))
        self._engine = engine
        self._drain_timeout_s = drain_timeout_s
        self._shutdown_task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle the signals in the event loop, and exit with status 0, not by the signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.begin_shutdown)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def begin_shutdown(self) -> None:
        """Start to drain, or exit at once if draining. Called in the event loop."""
        if self._shutdown_task is None:
            _logger.info("draining", extra={"timeout_s": self._drain_timeout_s})
            self._engine.drain()
            self._shutdown_task = asyncio.get_running_loop().create_task(self._shut_down())
        else:
            self.force_exit = True
            self.should_exit = True

    async def _shut_down(self) -> None:
        try:
            if not await self._engine.wait_idle(self._drain_timeout_s):
                _logger.warning("drain timeout exceeded; failing the remaining requests")
                await asyncio.to_thread(self._engine.close)
        finally:
            self.should_exit = True
