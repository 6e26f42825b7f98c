"""The cost of a kept sequence: seconds to compute it again, and bytes to hold it."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.sequence import Sequence


@dataclass(frozen=True)
class CostModel:
    """Seconds of prefill and bytes of memory, as far as they decide what is kept.

    Prefilling S tokens costs ``S * seconds_per_token`` for everything linear and
    ``S * (S + 1) / 2 * seconds_per_pair`` for attention. The default rates are fitted to prefill
    rates of 1,121 tok/s at 4 Ki and 1,029 tok/s at 32 Ki tokens of a 27B-class model on 2 x V100;
    only their ratio matters for the order of values.
    """

    seconds_per_token: float = 8.81e-4
    seconds_per_pair: float = 5.55e-9
    slot_bytes: int = 1
    page_bytes: int = 1

    def prefill_seconds(self, num_tokens: int) -> float:
        """Return the seconds of a prefill of ``num_tokens`` tokens."""
        pairs = num_tokens * (num_tokens + 1) / 2
        return num_tokens * self.seconds_per_token + pairs * self.seconds_per_pair

    def held_bytes(self, sequence: Sequence) -> int:
        """Return the bytes of the states and pages that the sequence holds."""
        return sequence.num_states * self.slot_bytes + len(sequence.pages) * self.page_bytes

    def own_seconds(self, sequence: Sequence) -> float:
        """Return the seconds of prefill that are lost with the sequence, without its anchor's."""
        return self.prefill_seconds(sequence.reusable_tokens) - self.prefill_seconds(
            min(sequence.anchored_tokens, sequence.reusable_tokens)
        )

    def own_bytes(self, sequence: Sequence) -> int:
        """Return the bytes that evicting the sequence frees; its anchor keeps the others."""
        num_anchored = sequence.anchored_tokens // PAGE_TOKENS
        return self.held_bytes(sequence) - min(num_anchored, len(sequence.pages)) * self.page_bytes
