"""Server-sent events: their bytes, and a response that ends when its client does.

Owns the wire format and the life of one stream. What the events say is up to the routes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvreg_service.api.generation.connection import run_while_connected

DONE = b"data: [DONE]\n\n"
# A comment: clients skip it, and whoever counts the seconds of silence starts anew.
KEEP_ALIVE = b": still writing\n\n"


# They end no line of an event stream, but many clients split lines as Python does, where they do.
# In JSON they can only stand inside of strings.
_LINE_BREAKS = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"})


def sse_data(body: dict[str, Any]) -> bytes:
    """Encode an ordinary event."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).translate(_LINE_BREAKS)
    return f"data: {text}\n\n".encode()


def sse_event(name: str, body: dict[str, Any]) -> bytes:
    """Encode an event with a name."""
    return f"event: {name}\n".encode() + sse_data(body)


class EventStreamResponse(Response):
    """Sends what a generator yields, and calls ``on_close`` once, however the stream ends.

    The generator alone cannot be trusted with that: one that never began does not run its end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        on_close: Callable[[], Awaitable[None]],
        headers: Mapping[str, str],
    ) -> None:
        self._events = events
        self._on_close = on_close
        self.status_code = 200
        self.background = None
        # Proxies that buffer or store would hold the tokens back.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Stream until the events end or the client leaves; the latter is no error."""
        try:
            await run_while_connected(receive, self._send_all(send))
        except ClientDisconnect:
            return
        finally:
            await self._events.aclose()
            await self._on_close()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async for chunk in self._events:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
