"""What the engine tells whoever counts, logs or traces: how each request went, and what was moved.

Owns the shapes. Nothing here holds text, and no observer can hold up or break the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from kvreg_service.core.events import Event
from kvreg_service.core.labels import CheckpointKind, FinishReason, Outcome, Tail
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.request import Admission, CachePolicy

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RequestRecord:
    """One request that the engine had accepted, at its end.

    ``boundary`` is the position whose state was to be kept; ``turn_boundary`` and
    ``round_boundary`` are those of `chat.boundary`, which other settings would choose from.
    ``prompt`` and ``output_ids`` are for digests; they must not be changed. ``session`` is the same
    for all requests whose conversations begin alike. ``admission`` is None for one that ended in
    the queue. Times ending in ``_at_s`` are seconds of the monotonic clock, None for what was never
    reached: arrival, lane, states in place, first token, end. The durations between them are never
    negative, and None where one of the two was never reached.
    """

    request_id: str
    tenant: str
    session: bytes
    outcome: Outcome
    error_code: str | None
    finish_reason: FinishReason | None
    tail: Tail
    prompt: TokenLedger
    output_ids: tuple[int, ...]
    max_tokens: int
    boundary: int | None
    heads: tuple[int, ...]
    cache_policy: CachePolicy
    admission: Admission | None
    arrived_at_s: float
    admitted_at_s: float | None
    prepared_at_s: float | None
    first_token_at_s: float | None
    ended_at_s: float
    boundary_kind: CheckpointKind = CheckpointKind.TURN
    turn_boundary: int | None = None
    round_boundary: int | None = None
    marked_heads: tuple[int, ...] = ()
    """Those of the heads that the client asked for."""
    trace_parent: str | None = None
    """The W3C ``traceparent`` header of the call, as it came."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt)

    @property
    def frontier(self) -> int | None:
        """Tokens that were computed; None when the prompt was not computed to its end."""
        return self.prompt_tokens + len(self.output_ids) - 1 if self.output_ids else None

    @property
    def queue_s(self) -> float | None:
        """Seconds from arrival to a lane."""
        return _between(self.arrived_at_s, self.admitted_at_s)

    @property
    def attach_s(self) -> float | None:
        """Seconds from a lane to the states in place."""
        return _between(self.admitted_at_s, self.prepared_at_s)

    @property
    def prefill_s(self) -> float | None:
        """Seconds from the states in place to the first token."""
        return _between(self.prepared_at_s, self.first_token_at_s)

    @property
    def decode_s(self) -> float | None:
        """Seconds from the first token to the end."""
        return _between(self.first_token_at_s, self.ended_at_s)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token."""
        return _between(self.arrived_at_s, self.first_token_at_s)

    @property
    def total_s(self) -> float:
        """Seconds from arrival to the end."""
        return max(0.0, self.ended_at_s - self.arrived_at_s)


class Observer(Protocol):
    """Called on the step loop's thread, between two steps. Must return within microseconds.

    What it raises is logged and goes no further.
    """

    def request_ended(self, record: RequestRecord) -> None:
        """An accepted request has ended. Called once for each."""
        ...

    def registry_changed(self, event: Event) -> None:
        """A sequence was detached, attached, forked, captured, evicted, or lost its pin."""
        ...

    def states_moved(self, seconds: float, *, is_attach: bool, is_detach: bool) -> None:
        """The states of one admission were brought in place; both flags may be set."""
        ...

    def token_followed(self, gap_s: float) -> None:
        """An answer got another token, ``gap_s`` seconds after the one before."""
        ...


class Observers:
    """Several observers as one that never raises."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def request_ended(self, record: RequestRecord) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.request_ended(record)

    def registry_changed(self, event: Event) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.registry_changed(event)

    def states_moved(self, seconds: float, *, is_attach: bool, is_detach: bool) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.states_moved(seconds, is_attach=is_attach, is_detach=is_detach)

    def token_followed(self, gap_s: float) -> None:
        """Tell all of them."""
        for observer in self._observers:
            with _logged(observer):
                observer.token_followed(gap_s)


def _between(start_s: float | None, end_s: float | None) -> float | None:
    if start_s is None or end_s is None:
        return None
    # A step reads the clock before it takes in what arrived meanwhile, and two of the times come
    # from sums: one may lie just before the other. A sum of durations must never shrink.
    return max(0.0, end_s - start_s)


@contextmanager
def _logged(observer: Observer) -> Iterator[None]:
    try:
        yield
    except Exception:
        _logger.exception("the observer %s failed", type(observer).__name__)
