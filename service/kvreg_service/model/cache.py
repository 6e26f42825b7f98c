"""The two caches of a sequence: state slots and KV pages, allocated once.

Owns the tensors and their layout. The core owns the assignment of slots and pages; there are no
reference counts here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.precision import accumulation_dtype


class StateSlots:
    """Owns the conv and recurrent states of all Gated DeltaNet layers for ``num_slots`` slots.

    Shapes:
        conv [layers, slots, K_conv - 1, conv_channels]: the last inputs of the convolution, oldest
        first. recurrent [layers, slots, HV, K, V], fp32 (fp64 for fp64 weights).
    """

    def __init__(self, conv: Tensor, recurrent: Tensor) -> None:
        self.conv = conv
        self.recurrent = recurrent
        self._runs: dict[tuple[int, int], StateBatch] = {}

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> StateSlots:
        """Reserves the memory. The content is undefined until a slot is written."""
        layers = config.num_linear_layers
        columns = config.linear_conv_kernel_dim - 1
        heads = config.linear_num_value_heads
        head = (config.linear_key_head_dim, config.linear_value_head_dim)
        return cls(
            torch.empty(
                (layers, num_slots, columns, config.conv_channels), dtype=dtype, device=device
            ),
            torch.empty(
                (layers, num_slots, heads, *head), dtype=accumulation_dtype(dtype), device=device
            ),
        )

    @property
    def num_slots(self) -> int:
        """The number of slots."""
        return self.recurrent.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.conv.nbytes + self.recurrent.nbytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot over all layers."""
        return self.nbytes // self.num_slots if self.num_slots else 0

    def zero(self, slot: int) -> None:
        """Makes ``slot`` the state before the first token."""
        self.conv[:, slot] = 0
        self.recurrent[:, slot] = 0

    def copy(self, source: int, target: int) -> None:
        """Makes ``target`` bit-identical to ``source``."""
        self.conv[:, target] = self.conv[:, source]
        self.recurrent[:, target] = self.recurrent[:, source]

    def batch(self, slots: Sequence[int]) -> StateBatch:
        """Returns the states of the sequences of one step, in order.

        Effects:
            Contiguous slots are views, which the step writes in place. Others are copies, which
            ``StateBatch.commit`` writes back.
        """
        assert len(set(slots)) == len(slots), f"a slot appears twice in {slots}"
        first, count = slots[0], len(slots)
        if list(slots) == list(range(first, first + count)):
            # A decode loop uses the same slots at every step.
            if (first, count) not in self._runs:
                run = slice(first, first + count)
                self._runs[first, count] = StateBatch(self.conv[:, run], self.recurrent[:, run])
            return self._runs[first, count]
        index = torch.tensor(slots, device=self.conv.device)
        return StateBatch(
            self.conv.index_select(1, index), self.recurrent.index_select(1, index), (self, index)
        )


class StateBatch:
    """The states of the sequences of one step, per layer; layers update them in place."""

    def __init__(
        self, conv: Tensor, recurrent: Tensor, copied_from: tuple[StateSlots, Tensor] | None = None
    ) -> None:
        self.conv = conv.unbind()
        self.recurrent = recurrent.unbind()
        self._stacked = (conv, recurrent)
        self._copied_from = copied_from

    def commit(self) -> None:
        """Writes copied states back to their slots; does nothing for views."""
        if self._copied_from is not None:
            slots, index = self._copied_from
            slots.conv.index_copy_(1, index, self._stacked[0])
            slots.recurrent.index_copy_(1, index, self._stacked[1])


@dataclass(frozen=True)
class KVContext:
    """The pages of the first ``num_tokens`` tokens of a sequence.

    Without ``pages`` they are contiguous rows, starting at ``first_row``.
    """

    num_tokens: int
    first_row: int
    pages: Tensor | None = None


class KVPages:
    """Owns the keys and values of ``num_pages`` pages for every full-attention layer.

    Shapes:
        kv [layers, 2 * KV heads, pages * 64, head_dim]: all key heads, then all value heads, then
        rows. Page p is the rows [64 p, 64 p + 64), so contiguous pages are contiguous rows, which
        attention reads without a copy.
    """

    def __init__(self, kv: Tensor) -> None:
        self.kv = kv
        self._layers = kv.unbind()
        self._keys_and_values = [layer.chunk(2) for layer in self._layers]

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_pages: int, dtype: torch.dtype, device: torch.device
    ) -> KVPages:
        """Reserves the memory. The content is undefined until a row is written."""
        shape = (
            config.num_attention_layers,
            2 * config.num_key_value_heads,
            num_pages * PAGE_TOKENS,
            config.head_dim,
        )
        return cls(torch.empty(shape, dtype=dtype, device=device))

    @property
    def num_pages(self) -> int:
        """The number of pages."""
        return self.kv.shape[2] // PAGE_TOKENS

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.kv.nbytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.nbytes // self.num_pages if self.num_pages else 0

    def copy_page(self, source: int, target: int) -> None:
        """Makes page ``target`` bit-identical to page ``source``."""
        pages = torch.unflatten(self.kv, 2, (-1, PAGE_TOKENS))
        pages[:, :, target] = pages[:, :, source]

    def rows(self, page_table: Sequence[int], start: int, num_tokens: int) -> list[int]:
        """Return the rows of the tokens at positions ``start`` to ``start + num_tokens``."""
        return [
            page_table[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
            for position in range(start, start + num_tokens)
        ]

    def context(self, page_table: Sequence[int], num_tokens: int) -> KVContext:
        """Returns how to read the first ``num_tokens`` tokens; called once per step."""
        count = math.ceil(num_tokens / PAGE_TOKENS)
        used = list(page_table[:count])
        assert len(used) == count, f"{num_tokens} tokens do not fit {len(used)} pages"
        if used == list(range(used[0], used[0] + count)):
            return KVContext(num_tokens, used[0] * PAGE_TOKENS)
        return KVContext(
            num_tokens, used[0] * PAGE_TOKENS, torch.tensor(used, device=self.kv.device)
        )

    def write(self, layer: int, rows: Tensor, kv: Tensor) -> None:
        """Stores new tokens.

        Shapes:
            rows [N] int64; kv [2 * KV heads, N, head_dim], key heads first.
        """
        self._layers[layer].index_copy_(1, rows, kv.to(self.kv.dtype))

    def read(self, layer: int, context: KVContext, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns keys and values, each [KV heads, num_tokens, head_dim].

        They are views if the rows are contiguous and stored in ``dtype``. Rows after the last token
        are never part of the result.
        """
        keys, values = self._keys_and_values[layer]
        if context.pages is None:
            keys = keys.narrow(1, context.first_row, context.num_tokens)
            values = values.narrow(1, context.first_row, context.num_tokens)
        else:
            keys = _gather(keys, context.pages, context.num_tokens)
            values = _gather(values, context.pages, context.num_tokens)
        if self.kv.dtype == dtype:
            return keys, values
        return keys.to(dtype), values.to(dtype)


def _gather(rows: Tensor, pages: Tensor, num_tokens: int) -> Tensor:
    """Concatenates pages [heads, rows, head_dim], without the rows after the last token."""
    gathered = torch.unflatten(rows, 1, (-1, PAGE_TOKENS)).index_select(1, pages)
    return gathered.flatten(1, 2).narrow(1, 0, num_tokens)
