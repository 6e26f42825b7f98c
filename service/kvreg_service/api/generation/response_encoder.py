"""The protocol that each API implements to encode a response in its format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kvreg_service.api.generation.output import GenerationOutput, OutputPart


class ResponseEncoder(Protocol):
    """Encodes one response, as one body or as server-sent events. One instance per request.

    The order of a stream: ``encode_start`` once, ``encode_part`` for each part, and either
    ``encode_end`` or ``encode_error``. ``keep_alive`` may be sent between parts.
    """

    @property
    def request_id(self) -> str:
        """The id of the request, for the engine and for the client."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """An event without content."""
        ...

    def encode_body(self, output: GenerationOutput) -> dict[str, Any]:
        """Build the body of a response that is not streamed, from finished output."""
        ...

    def encode_start(self, output: GenerationOutput) -> Iterator[bytes]:
        """Build the events before the first part; the prompt's token counts are known."""
        ...

    def encode_part(self, part: OutputPart) -> Iterator[bytes]:
        """Build the events of one part."""
        ...

    def encode_end(self, output: GenerationOutput) -> Iterator[bytes]:
        """Build the events after the last part, from finished output."""
        ...

    def encode_error(self, error: Exception) -> bytes:
        """Build the last event of a stream that fails after it has started."""
        ...
