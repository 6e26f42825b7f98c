"""Many ASGI applications behind one listening server, because starting one per case is slow.

Owns the map from the first path segment to the application.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from starlette.types import ASGIApp, Receive, Scope, Send


class Switchboard:
    """An ASGI application that routes each request by its first path segment."""

    def __init__(self) -> None:
        self.url = ""
        self._apps: dict[str, ASGIApp] = {}
        self._names = count(1)

    @contextmanager
    def mounted(self, app: ASGIApp) -> Iterator[str]:
        """Serve an application inside the block; yields its URL."""
        name = str(next(self._names))
        self._apps[name] = app
        try:
            yield f"{self.url}/{name}"
        finally:
            del self._apps[name]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route one request."""
        _, name, rest = scope["path"].split("/", 2)
        path = f"/{rest}"
        await self._apps[name]({**scope, "path": path, "raw_path": path.encode()}, receive, send)
