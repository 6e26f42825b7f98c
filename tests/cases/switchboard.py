"""Many applications behind one listening server: to start and to stop one costs more than a case.

Owns which application answers under which first segment of a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from starlette.types import ASGIApp, Receive, Scope, Send


class Switchboard:
    """An ASGI application that passes each request on to the application of its path."""

    def __init__(self) -> None:
        self.url = ""
        self._apps: dict[str, ASGIApp] = {}
        self._names = count(1)

    @contextmanager
    def plugged(self, app: ASGIApp) -> Iterator[str]:
        """Serve an application, as if it had a server of its own, at the URL that this yields."""
        name = str(next(self._names))
        self._apps[name] = app
        try:
            yield f"{self.url}/{name}"
        finally:
            del self._apps[name]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        _, name, rest = scope["path"].split("/", 2)
        path = f"/{rest}"
        await self._apps[name]({**scope, "path": path, "raw_path": path.encode()}, receive, send)
