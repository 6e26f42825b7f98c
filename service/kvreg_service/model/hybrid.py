"""The hybrid language model: Gated DeltaNet and full-attention layers over preallocated memory.

Owns the weights and the order of the layers. It has no state of sequences: slots, pages and
positions are arguments of each call, which returns logits. ``sampling`` chooses tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from kvreg_service.model.attention import Attention, AttentionBuffers
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.feed_forward import FeedForward, FeedForwardBuffers
from kvreg_service.model.gated_delta_net import GatedDeltaNet, GatedDeltaNetBuffers
from kvreg_service.model.precision import accumulation_dtype
from kvreg_service.model.projection import Projection, rms_direction
from kvreg_service.model.step import RotaryTable, Step


class Buffers:
    """The scratch buffers of a step of B sequences of T tokens. Their content is lost after it."""

    def __init__(
        self,
        config: ModelConfig,
        num_sequences: int,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        sizes = (num_sequences, num_tokens)
        self.linear = GatedDeltaNetBuffers(config, *sizes, dtype, device)
        self.attention = AttentionBuffers(config, *sizes, dtype, device)
        self.feed_forward = FeedForwardBuffers(config, num_sequences * num_tokens, dtype, device)


class DecodeBuffers(threading.local):
    """The buffers of each thread by number of sequences, allocated at first use.

    They are per thread, because engines that share a model decode at the same time.
    """

    def __init__(self) -> None:
        self.by_num_sequences: dict[int, Buffers] = {}


class HybridModel:
    """A loaded model. Thread-safe, as long as threads use different slots and pages.

    Results are inference tensors: modify them out of place, or inside ``inference_mode``.
    """

    def __init__(
        self, config: ModelConfig, weights: dict[str, Tensor], device: torch.device
    ) -> None:
        """Builds the layers from ``load_weights``.

        Effects:
            ``weights`` is emptied layer by layer, so that there are never two copies of the model.
        """
        self.config = config
        self.device = device
        self.dtype = weights["embed_tokens.weight"].dtype
        exact = accumulation_dtype(self.dtype)
        self._embedding = weights.pop("embed_tokens.weight").to(device)
        self._rotary = RotaryTable(config, exact, device)
        self._layers: list[tuple[GatedDeltaNet | Attention, FeedForward]] = []
        counts = {"linear_attention": 0, "full_attention": 0}
        for number, kind in enumerate(config.layer_types):
            layer = _take(weights, f"layers.{number}.")
            mixer_class = GatedDeltaNet if kind == "linear_attention" else Attention
            mixer = mixer_class(counts[kind], config, layer, device)
            counts[kind] += 1
            self._layers.append((mixer, FeedForward(config, layer, device)))
        self._norm = rms_direction(config.hidden_size, config.rms_norm_eps, self.dtype, device)
        norm = 1 + weights.pop("norm.weight").to(device, exact)
        self._norm_scale = norm * config.hidden_size**0.5
        if config.tie_word_embeddings:
            self._lm_head = Projection(self._embedding.t())
        else:
            self._lm_head = Projection.fused([weights.pop("lm_head.weight")], device)
        self._decode_buffers = DecodeBuffers()

    @torch.inference_mode()
    def prefill(
        self,
        token_ids: Tensor,
        start: int,
        slot: int,
        page_table: Sequence[int],
        states: StateSlots,
        pages: KVPages,
    ) -> Tensor:
        """Computes the tokens at positions ``start`` to ``start + T`` of one sequence.

        Shapes:
            token_ids [T] int64, T >= 1; returns the logits after the last token [vocab].

        Effects:
            State ``slot``, which must hold the state after ``start`` tokens (anything when
            ``start`` is 0), advances by T tokens. The pages named by ``page_table`` for these
            positions are written; earlier positions are read.
        """
        if start == 0:
            states.zero(slot)
        num_tokens = len(token_ids)
        step = Step.build(
            [start], num_tokens, [page_table], states.batch([slot]), pages, self._rotary
        )
        buffers = Buffers(self.config, 1, num_tokens, self.dtype, self.device)
        x = self._run(token_ids.to(self.device), step, buffers)
        return self._logits(x[-1:])[0]

    @torch.inference_mode()
    def decode(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        states: StateSlots,
        pages: KVPages,
    ) -> Tensor:
        """Computes one token of each of B sequences, as one batch.

        Shapes:
            Returns logits [B, vocab].

        Effects:
            Those of ``prefill`` with T = 1 for each sequence. Positions are at least 1, and the
            slots are distinct.
        """
        batch = states.batch(slots)
        step = Step.build(positions, 1, page_tables, batch, pages, self._rotary)
        x = self._run(
            torch.tensor(token_ids, device=self.device), step, self._buffers(len(token_ids))
        )
        batch.commit()
        return self._logits(x)

    def _run(self, token_ids: Tensor, step: Step, buffers: Buffers) -> Tensor:
        """Returns the residual stream after the last layer, [N, hidden]."""
        x = self._embedding.index_select(0, token_ids).to(self._norm_scale.dtype)
        for mixer, feed_forward in self._layers:
            if isinstance(mixer, GatedDeltaNet):
                mixer(x, buffers.linear, step)
            else:
                mixer(x, buffers.attention, step)
            feed_forward(x, buffers.feed_forward)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        normed = self._norm(x).mul_(self._norm_scale)
        return self._lm_head(normed.to(self.dtype)).to(x.dtype)

    def _buffers(self, num_sequences: int) -> Buffers:
        made = self._decode_buffers.by_num_sequences
        if num_sequences not in made:
            made[num_sequences] = Buffers(self.config, num_sequences, 1, self.dtype, self.device)
        return made[num_sequences]


def _take(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Removes the tensors under ``prefix`` and returns them without it."""
    names = [name for name in weights if name.startswith(prefix)]
    return {name.removeprefix(prefix): weights.pop(name) for name in names}
