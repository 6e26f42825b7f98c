"""The record of a request that has ended. It holds no text."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.labels import FinishReason, Outcome, StateKind, Tail
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Admission, CachePolicy


@dataclass(frozen=True)
class RequestRecord:
    """One accepted request, at its end.

    ``turn_boundary``, ``round_boundary`` and ``message_boundary`` are those of
    `chat.prompt.boundary`. ``prompt`` and ``output_ids`` are for digests and must not be changed.
    ``session`` is the same for all requests whose conversations begin alike. ``admission`` is None
    if the request ended in the queue. Times ending in ``_at_s`` are seconds of the monotonic clock:
    arrival, lane, state in place, first token, end; None for what was never reached. The durations
    between them are never negative, and None if one of the two was never reached.
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
    heads: tuple[int, ...]
    cache_policy: CachePolicy
    admission: Admission | None
    arrived_at_s: float
    admitted_at_s: float | None
    prepared_at_s: float | None
    first_token_at_s: float | None
    ended_at_s: float
    boundary_kind: StateKind = StateKind.TURN
    """Turn, or response if the answer continues a message of the client."""
    turn_boundary: int | None = None
    round_boundary: int | None = None
    message_boundary: int | None = None
    marked_heads: tuple[int, ...] = ()
    """Those of the heads that the client marked."""
    kept_at: tuple[int, ...] = ()
    """The positions of the states that were kept of it, in the order of their capture."""
    trace_parent: str | None = None
    """The W3C ``traceparent`` header of the call, unparsed."""

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
        """Seconds from a lane to the resumed state in place."""
        return _between(self.admitted_at_s, self.prepared_at_s)

    @property
    def prefill_s(self) -> float | None:
        """Seconds from the resumed state in place to the first token."""
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


def _between(start_s: float | None, end_s: float | None) -> float | None:
    if start_s is None or end_s is None:
        return None
    # A step reads the clock before it admits a request that arrived meanwhile, and two of the times
    # are sums: one may lie just before the other. A counter of durations must never shrink.
    return max(0.0, end_s - start_s)
