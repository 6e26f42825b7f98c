"""The full-attention layer: grouped heads, normed queries and keys, partial rotation, output gate.

Owns the layer's weights. Keys and values belong to ``KVPages`` and come with the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_kernels.unit_length import unit_length
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.projection import Projection
from kvreg_service.model.step import Step

QUERY_TILE_TOKENS = 256
"""Queries that attend at once in prefill: keys after the tile are skipped, not masked."""


class Attention:
    """One layer; ``index`` counts the full-attention layers only."""

    def __init__(
        self, index: int, config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.index = index
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.input_epsilon = config.hidden_size * config.rms_norm_eps
        self.head_epsilon = config.head_dim * config.rms_norm_eps
        layer = {name.removeprefix("self_attn."): weight for name, weight in weights.items()}
        names = ("k_proj", "v_proj")
        biases = []
        if config.attention_bias:
            query, gate = self._split_gate(layer["q_proj.bias"])
            biases = [query, *(layer[f"{name}.bias"] for name in names), gate]
        query, gate = self._split_gate(layer["q_proj.weight"])
        self.in_proj = Projection.fused(
            [query, *(layer[f"{name}.weight"] for name in names), gate],
            device,
            norm=1 + layer["input_layernorm.weight"],
            biases=biases,
        )
        self.out_proj = Projection.fused(
            [layer["o_proj.weight"]],
            device,
            biases=[layer["o_proj.bias"]] if config.attention_bias else [],
        )
        # One table [query and key heads, head_dim]: both norms and the scale of the scores. An RMS
        # norm is sqrt(D) unit vectors; on queries the 1 / sqrt(D) of the scores cancels it.
        query_norm = (1 + layer["q_norm.weight"]).expand(self.heads, -1)
        key_norm = (1 + layer["k_norm.weight"]).expand(self.kv_heads, -1)
        self.head_scale = torch.cat((query_norm, key_norm * self.head_dim**0.5)).to(device)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Returns what is added to the residual stream.

        Shapes:
            x [N, hidden] with N = sequences * tokens; returns the same shape.

        Effects:
            Writes the new keys and values into the step's rows.
        """
        projected = self.in_proj(unit_length(x, self.input_epsilon))
        gate_start = (self.heads + 2 * self.kv_heads) * self.head_dim
        heads = projected[:, :gate_start].view(len(x), -1, self.head_dim).to(x.dtype)
        qk, v = heads[:, : -self.kv_heads], heads[:, -self.kv_heads :]
        qk = unit_length(qk, self.head_epsilon).mul_(self.head_scale)
        step.rotation.apply_(qk)
        step.pages.write(self.index, step.rows, torch.cat((qk[:, self.heads :], v), dim=1))

        queries = qk[:, : self.heads].to(projected.dtype)
        tokens = step.num_tokens
        attended = [
            self._attend(
                queries[i * tokens : (i + 1) * tokens], step.pages.read(self.index, context)
            )
            for i, context in enumerate(step.contexts)
        ]
        mixed = attended[0] if len(attended) == 1 else torch.cat(attended)
        return self.out_proj(mixed * projected[:, gate_start:].sigmoid())

    def _attend(self, queries: Tensor, kv: Tensor) -> Tensor:
        """Lets the last T tokens of one sequence attend to themselves and all before.

        Shapes:
            queries [T, heads, head_dim]; kv [2 * KV heads, S, head_dim]; returns
            [T, heads * head_dim].
        """
        tokens, context = queries.shape[0], kv.shape[1]
        keys, values = kv[: self.kv_heads].to(queries.dtype), kv[self.kv_heads :].to(queries.dtype)
        group = (self.kv_heads, self.heads // self.kv_heads)
        if tokens == 1:
            rows = queries.view(*group, self.head_dim)
            weights = torch.bmm(rows, keys.mT).softmax(-1)
            return torch.bmm(weights, values).view(1, -1)
        grouped = queries.view(tokens, *group, self.head_dim).permute(
            1, 2, 0, 3
        )  # [KV heads, group, T, D]
        out = torch.empty(
            (tokens, self.heads * self.head_dim), dtype=queries.dtype, device=queries.device
        )
        for first in range(0, tokens, QUERY_TILE_TOKENS):
            last = min(first + QUERY_TILE_TOKENS, tokens)
            visible = context - tokens + last
            future = queries.new_full((last - first, visible), -torch.inf)
            tile = F.scaled_dot_product_attention(
                grouped[:, :, first:last],
                keys[:, None, :visible].expand(*group, -1, -1),
                values[:, None, :visible].expand(*group, -1, -1),
                attn_mask=future.triu_(visible - (last - first) + 1),
                scale=1.0,
            )
            out[first:last] = tile.permute(2, 0, 1, 3).flatten(1)
        return out

    def _split_gate(self, q_proj: Tensor) -> tuple[Tensor, Tensor]:
        """Separates queries from gates, which lie head by head next to each other."""
        heads = q_proj.view(self.heads, 2, self.head_dim, *q_proj.shape[1:])
        query, gate = heads.unbind(1)
        return query.flatten(0, 1), gate.flatten(0, 1)
