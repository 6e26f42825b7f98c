"""Server-sent events: their encoding, and a streaming response that ends on disconnect.

Owns the wire format and the lifetime of one stream. The routes build the events.
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
# A comment: clients ignore it, and idle timeouts start again.
KEEP_ALIVE = b": still writing\n\n"


# They do not end a line of an event stream, but many clients split lines like `str.splitlines`,
# where they do. In JSON they occur only inside strings.
_LINE_BREAKS = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"})


def sse_data(body: dict[str, Any]) -> bytes:
    """Encode an event without a name."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).translate(_LINE_BREAKS)
    return f"data: {text}\n\n".encode()


def sse_event(name: str, body: dict[str, Any]) -> bytes:
    """Encode an event with a name."""
    return f"event: {name}\n".encode() + sse_data(body)


class EventStreamResponse(Response):
    """Sends what a generator yields, and calls ``on_close`` once, however the stream ends.

    A ``finally`` in the generator is not enough: it does not run in a generator that never started.
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
        # Proxies must not buffer or cache the tokens.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the events until they end or the client disconnects, which is not an error."""
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
