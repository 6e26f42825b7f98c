"""The listening socket of a server."""

from __future__ import annotations

import socket

from kvreg_service.api.server import listen


def test_socket_names_its_protocol_so_that_asyncio_sends_small_writes_at_once() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
