"""What all layers share while they run the same number of tokens of each of some sequences.

Built once per step from page tables and positions, so that no layer repeats that work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvreg_service.model.cache import KVContext, KVPages, StateBatch, StateSlots
from kvreg_service.model.config import ModelConfig


def rotary_frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Returns the angle per position of each rotated pair of dimensions, [rotary_dim / 2].

    In fp32 whatever the weights, as in transformers: far positions must give the same angles.
    """
    # An odd size still divides by itself; only the number of pairs is rounded up.
    size = int(config.head_dim * config.partial_rotary_factor)
    exponents = torch.arange(0, size, 2, device=device).to(torch.float32) / size
    return 1.0 / config.rope_theta**exponents


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding of N tokens.

    Shapes:
        cos, sin [N, 1, rotary_dim]; the first half of sin is negated, so that a rotation is
        ``x * cos + swapped_halves(x) * sin``.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Rotation:
        """Computes angles in fp32 as transformers does, whatever the type of the result."""
        angles = positions.to(torch.float32).view(-1, 1, 1) * frequencies
        signed = torch.cat((-angles, angles), dim=-1)
        return cls(signed.cos().to(dtype), signed.sin().to(dtype))

    def apply_(self, x: Tensor) -> None:
        """Rotates the leading dimensions of each head of x [N, heads, head_dim] in place."""
        rotated = x[..., : self.cos.shape[-1]]
        half = self.cos.shape[-1] // 2
        swapped = torch.cat((rotated[..., half:], rotated[..., :half]), dim=-1)
        rotated.mul_(self.cos).addcmul_(swapped, self.sin)


@dataclass(frozen=True)
class Step:
    """T tokens of each of B sequences; rows of activations are sequence by sequence.

    Shapes:
        rows [B * T] int64: where the new keys and values go.
    """

    num_sequences: int
    num_tokens: int
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
        slots: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        states: StateSlots,
        pages: KVPages,
        frequencies: Tensor,
    ) -> Step:
        """Opens the memories of sequences whose next token has position ``starts[i]``."""
        device = frequencies.device
        rows: list[int] = []
        positions: list[int] = []
        for start, table in zip(starts, page_tables, strict=True):
            rows += pages.rows(table, start, num_tokens)
            positions += range(start, start + num_tokens)
        return cls(
            num_sequences=len(starts),
            num_tokens=num_tokens,
            states=states.batch(slots),
            pages=pages,
            rows=torch.tensor(rows, device=device),
            contexts=tuple(
                pages.context(table, start + num_tokens)
                for start, table in zip(starts, page_tables, strict=True)
            ),
            rotation=Rotation.at(
                torch.tensor(positions, device=device), frequencies, states.recurrent.dtype
            ),
        )
