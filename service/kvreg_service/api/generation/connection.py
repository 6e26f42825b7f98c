"""Cancels the work for a client that has disconnected.

Owns the watch of one connection. A route waits for the queue, the prefill and each token under this
watch, so that a disconnect frees the lane at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, unless the client disconnects first.

    ``receive`` is the ASGI channel of a request whose body has been read.

    Effects: unfinished work is cancelled and awaited when this returns or raises.

    Raises:
        ClientDisconnect: The client disconnected before the work was done.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
