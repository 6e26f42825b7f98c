"""Closes the connections of clients while the engine drains.

Owns one header, ``Connection: close``. A client with a persistent connection would keep sending to
this engine, although the load balancer has removed it; a new connection reaches another engine.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvreg_service.engine.interface.protocol import EngineProtocol


class CloseWhileDraining:
    """Middleware that closes each connection after its response while the engine drains."""

    def __init__(self, app: ASGIApp, engine: EngineProtocol) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and add the header to its response."""

        async def send_with_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._engine.is_draining:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_with_close)
