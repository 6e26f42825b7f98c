"""The inputs of a step that all layers share: states, pages, KV rows and rotations.

Built once per step from page tables and positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvreg_service.model.cache import KVContext, KVPages, StateBatch
from kvreg_service.model.config import ModelConfig


class RotaryTable:
    """The rotary frequencies.

    Angles are fp32 for all weights, as in transformers, so that far positions give equal results.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        # An odd size is still the divisor; only the number of pairs is rounded up.
        size = int(config.head_dim * config.partial_rotary_factor)
        exponents = torch.arange(0, size, 2, device=device).to(torch.float32) / size
        frequencies = 1.0 / config.rope_theta**exponents
        self.signed_frequencies = torch.cat((-frequencies, frequencies))

    def at(self, positions: Sequence[int]) -> Rotation:
        """Returns the rotation of N tokens."""
        device = self.signed_frequencies.device
        column = torch.tensor(positions, dtype=torch.float32, device=device).view(-1, 1, 1)
        angles = column * self.signed_frequencies
        return Rotation(angles.cos().to(self.dtype), angles.sin().to(self.dtype))


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding of N tokens.

    Shapes:
        cos, sin [N, 1, rotary_dim]; the first half of sin is negated, so that a rotation is
        ``x * cos + swapped_halves(x) * sin``.
    """

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class Step:
    """T tokens of each of B sequences; rows of activations are sequence by sequence.

    Shapes:
        rows [B * T] int64: where the new keys and values go.
    """

    states: StateBatch
    pages: KVPages
    rows: Tensor
    contexts: tuple[KVContext, ...]
    rotation: Rotation

    @classmethod
    def build(
        cls,
        starts: Sequence[int],
        num_tokens: int,
        page_tables: Sequence[Sequence[int]],
        states: StateBatch,
        pages: KVPages,
        rotary: RotaryTable,
    ) -> Step:
        """Builds a step for sequences whose next token has position ``starts[i]``."""
        rows: list[int] = []
        positions: list[int] = []
        contexts: list[KVContext] = []
        for start, page_table in zip(starts, page_tables, strict=True):
            rows += pages.rows(page_table, start, num_tokens)
            positions += range(start, start + num_tokens)
            contexts.append(pages.context(page_table, start + num_tokens))
        return cls(
            states,
            pages,
            torch.tensor(rows, device=pages.kv.device),
            tuple(contexts),
            rotary.at(positions),
        )
