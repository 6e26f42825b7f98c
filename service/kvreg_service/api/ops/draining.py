"""Lets clients go from an engine that drains.

Owns one header. A client that keeps its connection goes on sending to the engine behind it,
whatever a balancer has decided meanwhile; one that is closed is made anew, and leads elsewhere.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvreg_service.engine.interface.protocol import EngineProtocol


class CloseWhileDraining:
    """Middleware that ends each connection with the answer that it is used for."""

    def __init__(self, app: ASGIApp, engine: EngineProtocol) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on; the head of an answer gets the header."""

        async def send_and_let_go(message: Message) -> None:
            if message["type"] == "http.response.start" and self._engine.is_draining:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_and_let_go)
