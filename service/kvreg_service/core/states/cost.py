"""Seconds of prefill and bytes of memory, as far as they decide what is kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostModel:
    """What it costs to compute and to hold a prefix.

    Prefilling S tokens costs ``S * seconds_per_token`` for everything linear and
    ``S * (S + 1) / 2 * seconds_per_pair`` for attention. The default rates are fitted to prefill
    rates of 1,121 tok/s at 4 Ki and 1,029 tok/s at 32 Ki tokens of a 27B-class model on 2 x V100;
    only their ratio matters for the order of values.
    """

    seconds_per_token: float = 8.81e-4
    seconds_per_pair: float = 5.55e-9
    slot_bytes: int = 1
    page_bytes: int = 1

    def prefill_seconds(self, num_tokens: int, after: int = 0) -> float:
        """Return the seconds of a prefill up to ``num_tokens`` that begins at ``after``."""
        num_pairs = (num_tokens * (num_tokens + 1) - after * (after + 1)) / 2
        return (num_tokens - after) * self.seconds_per_token + num_pairs * self.seconds_per_pair

    def held_bytes(self, num_states: int, num_pages: int) -> int:
        """Return the bytes of states and pages."""
        return num_states * self.slot_bytes + num_pages * self.page_bytes
