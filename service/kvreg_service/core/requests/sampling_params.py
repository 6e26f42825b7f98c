"""The sampling parameters of a request, and the log probabilities that it gets back.

The core only passes both on; ``model.sampling`` reads the one and makes the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SamplingParams:
    """Every value is in range: the API has validated it. The default is greedy.

    ``num_logprobs`` is the number of most likely tokens reported with each sampled one; None
    reports nothing, at no cost.
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
    """Natural log probabilities of one sampled token and of the most likely ones, in order."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
