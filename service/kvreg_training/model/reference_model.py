"""The differentiable model: whole sequences to the logits of every token.

Owns the parameters, their names and their initialization. Names and mathematics are those of
transformers' ``Qwen3_5ForCausalLM``, plus ``mtp.*``. There is no cache and no mask: sequences are
right-padded. ``kvreg_service.model`` is the model for inference.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvreg_training.ops.interface import Ops
from kvreg_training.shape import LayerKind, ReferenceShape

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of every position, [T, rotary_size / 2] each."""

# Initially each layer adds little to the residual stream.
_RESIDUAL_GAIN = 0.3
_MATRIX_GAIN = 0.7
_EMBEDDING_STD = 0.02


class Linear(nn.Module):
    """A matrix without bias."""

    def __init__(self, ops: Ops, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self._ops = ops
        std = _MATRIX_GAIN * num_inputs**-0.5
        self.weight = nn.Parameter(torch.randn(num_outputs, num_inputs) * std)

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] to [..., num_outputs]."""
        return self._ops.linear(x, self.weight)


class RmsNorm(nn.Module):
    """The zero-centred form: the stored weight is 0 where nothing is scaled."""

    def __init__(self, ops: Ops, size: int, epsilon: float) -> None:
        super().__init__()
        self._ops = ops
        self._epsilon = epsilon
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """``(1 + weight) * x / rms(x)``."""
        return self._ops.rms_norm(x, 1.0 + self.weight, self._epsilon)


class GatedRmsNorm(nn.Module):
    """The norm of a GDN head: the stored weight is 1 where nothing is scaled."""

    def __init__(self, ops: Ops, size: int, epsilon: float) -> None:
        super().__init__()
        self._ops = ops
        self._epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """``weight * x / rms(x) * silu(gate)``."""
        return self._ops.gated_rms_norm(x, gate, self.weight, self._epsilon)


class CausalConvolution(nn.Module):
    """Holds the weight in the layout of the checkpoint, [C, 1, kernel]."""

    def __init__(self, ops: Ops, num_channels: int, kernel_size: int) -> None:
        super().__init__()
        self._ops = ops
        bound = kernel_size**-0.5
        self.weight = nn.Parameter(
            torch.empty(num_channels, 1, kernel_size).uniform_(-bound, bound)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C], with SiLU."""
        return self._ops.causal_conv_silu(x, self.weight.squeeze(1).t())


class GatedDeltaNet(nn.Module):
    """A layer with a recurrent state, here always started from zero."""

    def __init__(self, shape: ReferenceShape, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self._shape = gated_delta = shape.gated_delta
        hidden, heads = shape.hidden_size, gated_delta.num_value_heads
        self.conv1d = CausalConvolution(
            ops, gated_delta.conv_channels, gated_delta.conv_kernel_size
        )
        # Time steps of 0.001 to 0.1, as flash-linear-attention draws them: a long memory from the
        # start. The parameter is the inverse softplus.
        time_step = torch.exp(torch.rand(heads) * math.log(100) + math.log(0.001))
        self.dt_bias = nn.Parameter(time_step + torch.log(-torch.expm1(-time_step)))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(0.01, 16).log())
        self.norm = GatedRmsNorm(ops, gated_delta.value_head_size, shape.norm_epsilon)
        self.out_proj = Linear(ops, gated_delta.value_size, hidden)
        self.in_proj_qkv = Linear(ops, hidden, gated_delta.conv_channels)
        self.in_proj_z = Linear(ops, hidden, gated_delta.value_size)
        self.in_proj_b = Linear(ops, hidden, heads)
        self.in_proj_a = Linear(ops, hidden, heads)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden] to [B, T, hidden]."""
        qkv = self.conv1d(self.in_proj_qkv(x))
        # Too narrow for the fused product to be faster.
        beta = F.linear(x, self.in_proj_b.weight).sigmoid()
        step = F.softplus(F.linear(x, self.in_proj_a.weight) + self.dt_bias)
        log_decay = -self.A_log.exp() * step
        out = self._ops.gated_delta_rule(qkv, log_decay, beta, self._shape)
        gate: Tensor = self.in_proj_z(x).view_as(out)
        mixed: Tensor = self.out_proj(self.norm(out, gate).flatten(2))
        return mixed


class Attention(nn.Module):
    """Full attention with grouped heads, normed queries and keys, and a gate on its output."""

    def __init__(self, shape: ReferenceShape, ops: Ops) -> None:
        super().__init__()
        self._num_heads, self._num_kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self._head_size = size = shape.head_size
        hidden = shape.hidden_size
        self.q_proj = Linear(ops, hidden, self._num_heads * size * 2)
        self.k_proj = Linear(ops, hidden, self._num_kv_heads * size)
        self.v_proj = Linear(ops, hidden, self._num_kv_heads * size)
        self.o_proj = Linear(ops, self._num_heads * size, hidden)
        self.q_norm = RmsNorm(ops, size, shape.norm_epsilon)
        self.k_norm = RmsNorm(ops, size, shape.norm_epsilon)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """[B, T, hidden] to [B, T, hidden]."""
        kv_heads, size = self._num_kv_heads, self._head_size
        q, gate = self.q_proj(x).unflatten(-1, (self._num_heads, 2 * size)).chunk(2, dim=-1)
        k = self.k_proj(x).unflatten(-1, (kv_heads, size))
        v = self.v_proj(x).unflatten(-1, (kv_heads, size)).transpose(1, 2)
        q = _rotate(self.q_norm(q).transpose(1, 2), rotation)
        k = _rotate(self.k_norm(k).transpose(1, 2), rotation)
        group = self._num_heads // kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        gated = out.transpose(1, 2).flatten(2) * gate.flatten(2).sigmoid()
        mixed: Tensor = self.o_proj(gated)
        return mixed


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    half = cos.shape[-1]
    first, second, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Mlp(nn.Module):
    """A gated feed-forward network."""

    def __init__(self, shape: ReferenceShape, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.gate_proj = Linear(ops, shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(ops, shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(ops, shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        mixed: Tensor = self.down_proj(self._ops.swiglu(self.gate_proj(x), self.up_proj(x)))
        return mixed


class Layer(nn.Module):
    """A mixer over tokens and an MLP, each with its norm before and a residual around."""

    def __init__(self, shape: ReferenceShape, ops: Ops, kind: LayerKind) -> None:
        super().__init__()
        self._kind = kind
        if kind == "linear_attention":
            self.linear_attn = GatedDeltaNet(shape, ops)
            mixer_out = self.linear_attn.out_proj
        else:
            self.self_attn = Attention(shape, ops)
            mixer_out = self.self_attn.o_proj
        self.mlp = Mlp(shape, ops)
        self.input_layernorm = RmsNorm(ops, shape.hidden_size, shape.norm_epsilon)
        self.post_attention_layernorm = RmsNorm(ops, shape.hidden_size, shape.norm_epsilon)
        with torch.no_grad():
            mixer_out.weight.mul_(_RESIDUAL_GAIN)
            self.mlp.down_proj.weight.mul_(_RESIDUAL_GAIN)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """[B, T, hidden] to [B, T, hidden]."""
        normed = self.input_layernorm(x)
        if self._kind == "linear_attention":
            x = x + self.linear_attn(normed)
        else:
            x = x + self.self_attn(normed, rotation)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: ReferenceShape, ops: Ops) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=_EMBEDDING_STD)
        self.layers = nn.ModuleList(Layer(shape, ops, kind) for kind in shape.layer_kinds)
        self.norm = RmsNorm(ops, shape.hidden_size, shape.norm_epsilon)


class MtpHead(nn.Module):
    """Drafts token i+2 from the trunk's output at i (after its final norm) and token i+1."""

    def __init__(self, shape: ReferenceShape, ops: Ops) -> None:
        super().__init__()
        hidden, epsilon = shape.hidden_size, shape.norm_epsilon
        self.fc = Linear(ops, 2 * hidden, hidden)
        self.pre_fc_norm_embedding = RmsNorm(ops, hidden, epsilon)
        self.pre_fc_norm_hidden = RmsNorm(ops, hidden, epsilon)
        self.layers = nn.ModuleList([Layer(shape, ops, "full_attention")])
        self.norm = RmsNorm(ops, hidden, epsilon)

    def forward(self, next_embedding: Tensor, hidden: Tensor, rotation: Rotation) -> Tensor:
        """Both inputs [B, T, hidden]; returns [B, T, hidden] for the shared ``lm_head``."""
        halves = (self.pre_fc_norm_embedding(next_embedding), self.pre_fc_norm_hidden(hidden))
        x = self.fc(torch.cat(halves, dim=-1))
        out: Tensor = self.norm(self.layers[0](x, rotation))
        return out


class ReferenceModel(nn.Module):
    """Trunk, ``lm_head`` and MTP head under the names of the checkpoint."""

    def __init__(self, shape: ReferenceShape, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.model = Trunk(shape, ops)
        self.lm_head = Linear(ops, shape.hidden_size, shape.vocab_size)
        self.mtp = MtpHead(shape, ops)
        channels = torch.arange(0, shape.rotary_size, 2, dtype=torch.float32)
        self._frequencies = shape.rope_theta ** -(channels / shape.rotary_size)

    def hidden(self, token_ids: Tensor) -> Tensor:
        """The trunk's output after its final norm, [B, T] to [B, T, hidden]."""
        rotation = self._rotation(token_ids.shape[1])
        x = self.model.embed_tokens(token_ids)
        for layer in self.model.layers:
            x = layer(x, rotation)
        out: Tensor = self.model.norm(x)
        return out

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits, [B, T] to [B, T, V]."""
        logits: Tensor = self.lm_head(self.hidden(token_ids))
        return logits

    def draft_hidden(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """The output of the MTP head for that of the trunk: position i drafts token i+2.

        Shapes:
            token_ids [B, T]; hidden [B, T, hidden]. Returns [B, T-1, hidden]; the last position
            drafts a token beyond the sequence.
        """
        rotation = self._rotation(token_ids.shape[1] - 1)
        next_embedding = self.model.embed_tokens(token_ids[:, 1:])
        out: Tensor = self.mtp(next_embedding, hidden[:, :-1], rotation)
        return out

    def _rotation(self, num_tokens: int) -> Rotation:
        angles = torch.arange(num_tokens, dtype=torch.float32)[:, None] * self._frequencies
        return angles.cos(), angles.sin()
