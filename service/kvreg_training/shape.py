"""The shape of the reference model, and its ``config.json``.

Owns the sizes; ``model.reference_model`` owns the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["linear_attention", "full_attention"]

PAD_TOKEN_ID = 2039
END_OF_MESSAGE_ID = 2041


@dataclass(frozen=True)
class GatedDeltaShape:
    """Heads of the GDN layers: each key head serves ``num_value_heads / num_key_heads`` others."""

    num_key_heads: int = 2
    num_value_heads: int = 4
    key_head_size: int = 32
    value_head_size: int = 32
    conv_kernel_size: int = 4

    @property
    def key_size(self) -> int:
        """Channels of all keys; equal to those of all queries."""
        return self.num_key_heads * self.key_head_size

    @property
    def value_size(self) -> int:
        """Channels of all values."""
        return self.num_value_heads * self.value_head_size

    @property
    def conv_channels(self) -> int:
        """Channels of queries, keys and values side by side."""
        return 2 * self.key_size + self.value_size


@dataclass(frozen=True)
class ReferenceShape:
    """Sizes of the trunk and its MTP head. The defaults are the bundled checkpoint's."""

    vocab_size: int = 2048
    hidden_size: int = 128
    intermediate_size: int = 256
    num_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_size: int = 64
    rotary_share: float = 0.25
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-6
    max_position_embeddings: int = 4096
    gated_delta: GatedDeltaShape = GatedDeltaShape()

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Every ``full_attention_interval``-th layer is a full-attention layer."""
        return tuple(
            "linear_attention" if number % self.full_attention_interval else "full_attention"
            for number in range(1, self.num_layers + 1)
        )

    @property
    def rotary_size(self) -> int:
        """Channels of a head that are rotated."""
        return int(self.head_size * self.rotary_share)

    def config(self) -> dict[str, object]:
        """The contents of ``config.json``, as transformers' ``qwen3_5_text`` reads them."""
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "bos_token_id": None,
            "dtype": "bfloat16",
            "eos_token_id": END_OF_MESSAGE_ID,
            "full_attention_interval": self.full_attention_interval,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "layer_types": list(self.layer_kinds),
            "linear_conv_kernel_dim": self.gated_delta.conv_kernel_size,
            "linear_key_head_dim": self.gated_delta.key_head_size,
            "linear_num_key_heads": self.gated_delta.num_key_heads,
            "linear_num_value_heads": self.gated_delta.num_value_heads,
            "linear_value_head_dim": self.gated_delta.value_head_size,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": self.max_position_embeddings,
            "model_type": "qwen3_5_text",
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "pad_token_id": PAD_TOKEN_ID,
            "partial_rotary_factor": self.rotary_share,
            "rms_norm_eps": self.norm_epsilon,
            "rope_parameters": {
                # Sections of image positions; no effect on text.
                "mrope_interleaved": True,
                "mrope_section": [3, 3, 2],
                "partial_rotary_factor": self.rotary_share,
                "rope_theta": self.rope_theta,
                "rope_type": "default",
            },
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": self.vocab_size,
        }
