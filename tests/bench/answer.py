"""What every contestant of the comparison is asked, and what it says about its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Answer:
    """One greedy answer. A count is None when the contestant does not tell it.

    ``ttft_s`` and ``client_decode_tokens_per_s`` are by the asker's clock; the other two rates are
    the contestant's own where it reports them, and by the asker's clock where it does not. An
    answer of a single token has no decode rate.
    """

    text: str
    prompt_tokens: int | None
    computed_tokens: int | None
    completion_tokens: int
    ttft_s: float
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    client_decode_tokens_per_s: float | None


class Contestant(Protocol):
    """Somebody who answers conversations, one at a time."""

    @property
    def name(self) -> str:
        """What the tables call it."""
        ...

    def ask(self, messages: Messages, max_tokens: int) -> Answer:
        """Answer greedily and without thinking."""
        ...

    def forget(self) -> None:
        """Give up what earlier sessions left, where the contestant can be told to."""
        ...


def decode_rate(num_tokens: int, decode_s: float) -> float | None:
    """Return tokens per second behind the first one; None when there is no other."""
    return (num_tokens - 1) / decode_s if num_tokens > 1 and decode_s > 0 else None
