"""The seam between the life of an answer and the API that it is written for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kvreg_service.api.generation.output import ChatAnswer, Piece


class AnswerFormat(Protocol):
    """How one answer is written: whole, or as server-sent events. Made for one request each.

    Of a stream, ``opening`` comes once and first, then ``more`` for each piece, and last either
    ``closing`` or ``failure``. ``keep_alive`` may come between them when nothing else does.
    """

    @property
    def request_id(self) -> str:
        """The name of the request, in the engine and to the client."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """An event that says nothing."""
        ...

    def whole(self, answer: ChatAnswer) -> dict[str, Any]:
        """Build the body of an answer that is not streamed, after its last event."""
        ...

    def opening(self, answer: ChatAnswer) -> Iterator[bytes]:
        """Build what stands before the first piece; the prompt's numbers are known."""
        ...

    def more(self, piece: Piece) -> Iterator[bytes]:
        """Build the events of one more piece."""
        ...

    def closing(self, answer: ChatAnswer) -> Iterator[bytes]:
        """Build what stands behind the last piece, after the answer's last event."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Build the event that ends a stream which has already begun and then failed."""
        ...
