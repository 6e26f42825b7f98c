"""The full-attention layer: grouped heads, normed queries and keys, partial rotation, output gate.

Owns the layer's weights. Keys and values belong to ``KVPages`` and are passed with the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kvreg_service.model.config import ModelConfig
from kvreg_service.model.precision import accumulation_dtype
from kvreg_service.model.projection import Projection, rms_direction
from kvreg_service.model.step import Step

QUERY_TILE_TOKENS = 256
"""Queries per tile in prefill: keys after the tile are skipped, not masked."""


class AttentionBuffers:
    """The scratch buffers of the layer, for T tokens of each of B sequences; N = B * T rows.

    All layers share one instance, as they run one after the other.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_sequences: int,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        num_rows = num_sequences * num_tokens
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        exact = accumulation_dtype(dtype)

        def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.unit = empty(num_rows, config.hidden_size)
        sizes = ((heads + kv_heads) * head_dim, kv_heads * head_dim, heads * head_dim)
        self.projected = empty(num_rows, sum(sizes))
        raw_qk, raw_v, self.gate = torch.split_with_sizes(self.projected, sizes, dim=1)
        self.raw_qk = raw_qk.view(num_rows, -1, head_dim)
        self.raw_v = raw_v.view(num_rows, -1, head_dim)

        # Query, key and value heads side by side, so that keys and values are stored in one copy.
        self.qkv = empty(num_rows, heads + 2 * kv_heads, head_dim, dtype=exact)
        self.qk, self.v = self.qkv[:, :-kv_heads], self.qkv[:, -kv_heads:]
        self.q, self.kv = self.qkv[:, :heads], self.qkv[:, heads:].transpose(0, 1)
        half = config.rotary_dim // 2
        self.rotated = self.qk[..., : 2 * half]
        self.rotated_halves = (self.rotated[..., half:], self.rotated[..., :half])
        self.swapped = empty(num_rows, heads + kv_heads, 2 * half, dtype=exact)

        self.queries = empty(num_rows, heads, head_dim)
        self.attended = empty(num_rows, heads * head_dim)
        # One view per sequence, [T, KV heads, query heads that share one, head_dim].
        shape = (num_sequences, num_tokens, kv_heads, heads // kv_heads, head_dim)
        self.queries_of = self.queries.view(shape).unbind()
        self.attended_of = self.attended.view(shape).unbind()


class Attention:
    """One layer; ``index`` counts the full-attention layers only."""

    def __init__(
        self, index: int, config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.index = index
        layer = {name.removeprefix("self_attn."): weight for name, weight in weights.items()}
        dtype, eps = layer["o_proj.weight"].dtype, config.rms_norm_eps
        self.input_norm = rms_direction(config.hidden_size, eps, dtype, device)
        self.head_norm = rms_direction(config.head_dim, eps, dtype, device)
        self.in_proj = Projection.fused(
            _in_order(layer, "weight", config),
            device,
            norm=1 + layer["input_layernorm.weight"],
            biases=_in_order(layer, "bias", config) if config.attention_bias else (),
        )
        self.out_proj = Projection.fused(
            [layer["o_proj.weight"]],
            device,
            biases=[layer["o_proj.bias"]] if config.attention_bias else (),
        )
        # One table [query and key heads, head_dim]: both norms and the scale of the scores. An RMS
        # norm is sqrt(D) unit vectors; on queries the 1 / sqrt(D) of the scores cancels it.
        query_norm = (1 + layer["q_norm.weight"]).expand(config.num_attention_heads, -1)
        key_norm = (1 + layer["k_norm.weight"]).expand(config.num_key_value_heads, -1)
        self.head_scale = torch.cat((query_norm, key_norm * config.head_dim**0.5)).to(device)

    def __call__(self, x: Tensor, buffers: AttentionBuffers, step: Step) -> None:
        """Adds the layer's output to the residual stream x [N, hidden].

        Effects:
            Writes the new keys and values to the KV pages of the step.
        """
        self.input_norm(x, out=buffers.unit)
        self.in_proj(buffers.unit, out=buffers.projected)
        self.head_norm(buffers.raw_qk, out=buffers.qk).mul_(self.head_scale)
        torch.cat(buffers.rotated_halves, dim=-1, out=buffers.swapped)
        buffers.rotated.mul_(step.rotation.cos).addcmul_(buffers.swapped, step.rotation.sin)
        buffers.v.copy_(buffers.raw_v)
        step.pages.write(self.index, step.rows, buffers.kv)

        buffers.queries.copy_(buffers.q)
        for queries, attended, context in zip(
            buffers.queries_of, buffers.attended_of, step.contexts, strict=True
        ):
            keys, values = step.pages.read(self.index, context, queries.dtype)
            if queries.shape[0] == 1:
                _attend_one(queries[0], keys, values, attended[0])
            else:
                _attend_tiles(queries, keys, values, attended)
        buffers.attended.mul_(buffers.gate.sigmoid_())
        self.out_proj.add_to(x, buffers.attended)


def _attend_one(queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
    """Attention of one token to all tokens: one product per KV head, its query heads as rows.

    Shapes:
        queries, out [KV heads, group, head_dim]; keys, values [KV heads, S, head_dim].
    """
    torch.bmm(torch.bmm(queries, keys.mT).softmax(-1), values, out=out)


def _attend_tiles(queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
    """Causal attention of the last T of S tokens.

    Shapes:
        queries, out [T, KV heads, group, head_dim]; keys, values [KV heads, S, head_dim].
    """
    tokens, group = queries.shape[0], queries.shape[2]
    num_before = keys.shape[1] - tokens
    queries = queries.permute(1, 2, 0, 3)
    keys = keys.unsqueeze(1).expand(-1, group, -1, -1)
    values = values.unsqueeze(1).expand(-1, group, -1, -1)
    for first in range(0, tokens, QUERY_TILE_TOKENS):
        last = min(first + QUERY_TILE_TOKENS, tokens)
        visible = num_before + last
        future = queries.new_full((last - first, visible), -torch.inf)
        tile = F.scaled_dot_product_attention(
            queries[:, :, first:last],
            keys[:, :, :visible],
            values[:, :, :visible],
            attn_mask=future.triu_(num_before + first + 1),
            scale=1.0,
        )
        out[first:last] = tile.permute(2, 0, 1, 3)


def _in_order(layer: Mapping[str, Tensor], kind: str, config: ModelConfig) -> list[Tensor]:
    """Return queries, keys, values, gates; q_proj has query and gate of each head interleaved."""
    q_proj = layer[f"q_proj.{kind}"]
    per_head = q_proj.view(config.num_attention_heads, 2, config.head_dim, *q_proj.shape[1:])
    queries, gates = per_head.transpose(0, 1).reshape(2, -1, *q_proj.shape[1:])
    return [queries, layer[f"k_proj.{kind}"], layer[f"v_proj.{kind}"], gates]
