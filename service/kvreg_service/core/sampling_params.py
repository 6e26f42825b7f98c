"""How one request wants its tokens chosen, and what it wants to know of the choice.

The core carries both; ``model.sampling`` reads the one and makes the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SamplingParams:
    """Validated at the API; here every value is in range. The default is greedy.

    ``num_logprobs`` is how many likely tokens are reported beside each chosen one; None reports
    nothing at all, which costs nothing.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    num_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities, natural, of one chosen token and of the most likely ones in order."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
