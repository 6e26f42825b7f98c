"""The interface of a backend in the comparison, and the measurements of one completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Answer:
    """One greedy completion. A count is None if the backend does not report it.

    ``ttft_s`` and ``client_decode_tokens_per_s`` are measured by the client. The other two rates
    are those that the backend reports; if it reports none, they are measured by the client too. A
    completion of a single token has no decode rate.
    """

    text: str
    prompt_tokens: int | None
    computed_tokens: int | None
    completion_tokens: int
    ttft_s: float
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    client_decode_tokens_per_s: float | None


class Backend(Protocol):
    """Completes chat conversations, one at a time."""

    @property
    def name(self) -> str:
        """The name in the tables."""
        ...

    def complete(self, messages: Messages, max_tokens: int) -> Answer:
        """Generate greedily and without thinking."""
        ...

    def reset_cache(self) -> None:
        """Drop the state of earlier sessions, if the backend has an API for it."""
        ...


def decode_rate(num_tokens: int, decode_s: float) -> float | None:
    """Return tokens per second after the first token; None for a single token."""
    return (num_tokens - 1) / decode_s if num_tokens > 1 and decode_s > 0 else None
