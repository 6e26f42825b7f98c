"""Runs the application on a socket until it is told to stop, and stops without cutting answers.

Owns the socket, the signals and the order of the end: take nothing new, let running requests finish
within their time, fail the rest, close. It knows neither routes nor models.
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
# After the engine is idle, for the last bytes to reach slow clients.
_FLUSH_TIMEOUT_S = 5
# Longer than the minute after which common load balancers and clients drop an idle connection: who
# closes first never races with a request that is being sent.
_KEEP_ALIVE_S = 75


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket; port 0 takes a free one.

    From here on clients connect, and wait until the application serves them.

    Raises:
        OSError: The address is not one of this machine, or the port is taken.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # asyncio turns Nagle's algorithm off only where the socket names its protocol; left on, it
    # holds the last bytes of an answer back for 40 ms.
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
    """Return the address under which a client reaches the socket."""
    host, port = listener.getsockname()[:2]
    return (
        f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
    )


def uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    """Build the configuration of every server of this package; the logs are ours."""
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
    """A server whose first SIGTERM or SIGINT drains the engine, and whose second one ends at once.

    While it drains it still answers: probes with their truth, new requests with 503.
    """

    def __init__(self, app: ASGIApp, engine: EngineProtocol, *, drain_timeout_s: float) -> None:
        super().__init__(uvicorn_config(app))
        self._engine = engine
        self._drain_timeout_s = drain_timeout_s
        self._ending: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle the signals in the event loop, and end with status 0, not by the signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.begin_end)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def begin_end(self) -> None:
        """Start the end, or hurry it when it has started. Called in the event loop."""
        if self._ending is None:
            _logger.info("draining", extra={"timeout_s": self._drain_timeout_s})
            self._engine.drain()
            self._ending = asyncio.get_running_loop().create_task(self._end())
        else:
            self.force_exit = True
            self.should_exit = True

    async def _end(self) -> None:
        try:
            if not await self._engine.wait_idle(self._drain_timeout_s):
                _logger.warning("requests still run after the drain timeout; they fail now")
                await asyncio.to_thread(self._engine.close)
        finally:
            self.should_exit = True
