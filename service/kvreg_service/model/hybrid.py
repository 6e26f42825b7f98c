"""The hybrid language model: Gated DeltaNet and full-attention layers over preallocated memory.

Owns the weights and the order of the layers. It owns no sequence: slots, pages and positions come
with each call, and logits leave with it; choosing tokens is somebody else's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvreg_kernels.unit_length import unit_length
from kvreg_service.model.attention import Attention
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.feed_forward import FeedForward
from kvreg_service.model.gated_delta_net import GatedDeltaNet
from kvreg_service.model.projection import Projection
from kvreg_service.model.step import Step, rotary_frequencies


class HybridModel:
    """A loaded model. Calls are not re-entrant per slot or page; different models are independent.

    Results are inference tensors: operate on them out of place, or inside ``inference_mode``.
    """

    def __init__(
        self, config: ModelConfig, weights: dict[str, Tensor], device: torch.device
    ) -> None:
        """Builds the layers from ``load_weights``.

        Effects:
            ``weights`` is emptied layer by layer, so that at no time two copies of the model exist.
        """
        self.config = config
        self.device = device
        self.dtype = weights["embed_tokens.weight"].dtype
        self.embedding = weights.pop("embed_tokens.weight").to(device)
        self.frequencies = rotary_frequencies(config, device)
        self.layers: list[tuple[GatedDeltaNet | Attention, FeedForward]] = []
        counts = {"linear_attention": 0, "full_attention": 0}
        for number, kind in enumerate(config.layer_types):
            layer = _take(weights, f"layers.{number}.")
            mixer_class = GatedDeltaNet if kind == "linear_attention" else Attention
            mixer = mixer_class(counts[kind], config, layer, device)
            counts[kind] += 1
            self.layers.append((mixer, FeedForward(config, layer, device)))
        self.norm_epsilon = config.hidden_size * config.rms_norm_eps
        norm = (1 + weights.pop("norm.weight")).to(device) * config.hidden_size**0.5
        self.norm_scale = norm
        if config.tie_word_embeddings:
            self.lm_head = Projection(self.embedding.t())
        else:
            self.lm_head = Projection.fused([weights.pop("lm_head.weight")], device)

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
        step = Step.build(
            [start], len(token_ids), [slot], [page_table], states, pages, self.frequencies
        )
        x = self._run(token_ids.to(self.device), step)
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
        """Computes one token of each of B sequences as one batch.

        Shapes:
            Returns logits [B, vocab].

        Effects:
            As ``prefill`` with T = 1 for each sequence. Positions are at least 1, slots differ.
        """
        step = Step.build(positions, 1, slots, page_tables, states, pages, self.frequencies)
        return self._logits(self._run(torch.tensor(token_ids, device=self.device), step))

    def _run(self, token_ids: Tensor, step: Step) -> Tensor:
        """Returns the residual stream after the last layer, [N, hidden]."""
        x = self.embedding.index_select(0, token_ids).to(step.states.dtype)
        for mixer, feed_forward in self.layers:
            x.add_(mixer(x, step))
            x.add_(feed_forward(x))
        step.states.commit()
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return self.lm_head(unit_length(x, self.norm_epsilon) * self.norm_scale).to(x.dtype)


def _take(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Removes the tensors under ``prefix`` and returns them without it."""
    names = [name for name in weights if name.startswith(prefix)]
    return {name.removeprefix(prefix): weights.pop(name) for name in names}
