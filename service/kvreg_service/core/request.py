"""One request as the scheduler sees it: tokens and limits, no text."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.ids import RequestId
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.sampling_params import SamplingParams
from kvreg_service.core.sequence import CheckpointKind


@dataclass(frozen=True)
class Request:
    """Immutable from arrival to its terminal event.

    ``boundary`` is the token position whose state is worth keeping as the checkpoint, or None.
    """

    request_id: RequestId
    prompt: TokenLedger
    max_tokens: int
    arrival_s: float
    stop_token_ids: frozenset[int] = frozenset()
    boundary: int | None = None
    boundary_kind: CheckpointKind = CheckpointKind.TURN
    retain: bool = True
    may_reuse: bool = True
    priority: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt)
