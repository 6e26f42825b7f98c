"""An application served over real sockets by a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from kvreg_service.api.server import listen, url_of, uvicorn_config


@contextlib.contextmanager
def running_server(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a free loopback port; yields its URL and stops it at the end.

    The socket listens before the block runs, so a client can connect at once.
    """
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn_config(app))
    thread = threading.Thread(target=server.run, args=([listener],), name="kvreg-test-server")
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
