"""The validated ``config.json`` of a text model.

Owns the parsing of ``qwen3_5_text`` configurations, alone or nested in a multimodal one, with the
defaults of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvreg_service.core.errors import CheckpointError

LayerKind = Literal["linear_attention", "full_attention"]
_LAYER_KINDS = ("linear_attention", "full_attention")
_MODEL_TYPE = "qwen3_5_text"


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a hybrid model, named as in ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[LayerKind, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    attention_bias: bool
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    rms_norm_eps: float
    rope_theta: float
    partial_rotary_factor: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    mtp_num_hidden_layers: int

    @classmethod
    def from_path(cls, path: Path | str) -> ModelConfig:
        """Reads ``path``, a ``config.json`` or the folder that holds one.

        Raises:
            CheckpointError: The file does not exist or is not a JSON object, or fields are missing,
                invalid or not supported. The message lists all of them.
        """
        file = Path(path)
        if file.is_dir():
            file = file / "config.json"
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{file} does not exist") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} is not readable JSON: {error}") from error
        if not isinstance(raw, dict):
            raise CheckpointError(f"{file} is not a JSON object")
        try:
            return cls.from_dict(raw)
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error.message}", **error.fields) from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Reads a decoded ``config.json``.

        Raises:
            CheckpointError: See ``from_path``; ``fields["problems"]`` has all problems.
        """
        text = raw.get("text_config", raw)
        if not isinstance(text, Mapping):
            raise CheckpointError("text_config is not an object", problems=("text_config",))
        fields = _Fields({**text, **_outer_fields(raw)})
        if text.get("model_type") != _MODEL_TYPE:
            fields.problems.append(
                f"model_type is {text.get('model_type')!r}, expected {_MODEL_TYPE!r}"
            )
        if fields.value("hidden_act", "silu") not in ("silu", "swish"):
            fields.problems.append(f"hidden_act is {text['hidden_act']!r}, expected 'silu'")
        if fields.value("attn_output_gate", True) is not True:
            fields.problems.append("attn_output_gate is false; only gated attention is supported")
        rope = _rope_fields(text, fields.problems)
        config = cls(
            vocab_size=fields.positive_int("vocab_size", 248320),
            hidden_size=fields.positive_int("hidden_size", 4096),
            intermediate_size=fields.positive_int("intermediate_size", 12288),
            layer_types=fields.layer_types(),
            num_attention_heads=fields.positive_int("num_attention_heads", 16),
            num_key_value_heads=fields.positive_int("num_key_value_heads", 4),
            head_dim=fields.positive_int("head_dim", 256),
            attention_bias=fields.boolean("attention_bias", False),
            linear_num_key_heads=fields.positive_int("linear_num_key_heads", 16),
            linear_num_value_heads=fields.positive_int("linear_num_value_heads", 32),
            linear_key_head_dim=fields.positive_int("linear_key_head_dim", 128),
            linear_value_head_dim=fields.positive_int("linear_value_head_dim", 128),
            linear_conv_kernel_dim=fields.positive_int("linear_conv_kernel_dim", 4),
            rms_norm_eps=fields.positive_float("rms_norm_eps", 1e-6),
            rope_theta=rope.positive_float("rope_theta", 10000.0),
            partial_rotary_factor=rope.positive_float("partial_rotary_factor", 0.25),
            max_position_embeddings=fields.positive_int("max_position_embeddings", 32768),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
            mtp_num_hidden_layers=fields.natural_int("mtp_num_hidden_layers", 0),
        )
        problems = fields.problems + rope.problems
        problems += [] if problems else _contradictions(config)
        if problems:
            raise CheckpointError("; ".join(problems), problems=tuple(problems))
        return config

    @property
    def num_linear_layers(self) -> int:
        """The number of Gated DeltaNet layers; each has a part of every state slot."""
        return self.layer_types.count("linear_attention")

    @property
    def num_attention_layers(self) -> int:
        """The number of full-attention layers; each has a part of every KV page."""
        return self.layer_types.count("full_attention")

    @property
    def linear_key_size(self) -> int:
        """The size of all key heads of a Gated DeltaNet layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_size(self) -> int:
        """The size of all value heads of a Gated DeltaNet layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """The channels of the short convolution: queries, keys and values."""
        return 2 * self.linear_key_size + self.linear_value_size

    @property
    def rotary_dim(self) -> int:
        """The number of leading dimensions of each attention head that are rotated; even."""
        return 2 * -(-int(self.head_dim * self.partial_rotary_factor) // 2)


def _outer_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the text model that a multimodal one has outside ``text_config``."""
    return {name: raw[name] for name in ("tie_word_embeddings",) if name in raw}


def _rope_fields(text: Mapping[str, Any], problems: list[str]) -> _Fields:
    """Collects the rotary fields from all places where published configurations have them."""
    nested = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(nested, Mapping):
        problems.append("rope_parameters is not an object")
        nested = {}
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default":
        problems.append(f"rope_type is {kind!r}; only 'default' is supported")
    names = ("rope_theta", "partial_rotary_factor")
    outer = {name: text[name] for name in names if text.get(name) is not None}
    return _Fields({**outer, **nested})


def _contradictions(config: ModelConfig) -> list[str]:
    """Returns the fields that are valid alone but contradict each other."""
    problems = []
    if config.num_attention_heads % config.num_key_value_heads:
        problems.append("num_attention_heads is not a multiple of num_key_value_heads")
    if config.linear_num_value_heads % config.linear_num_key_heads:
        problems.append("linear_num_value_heads is not a multiple of linear_num_key_heads")
    if not 0 < config.rotary_dim <= config.head_dim:
        problems.append(
            f"partial_rotary_factor {config.partial_rotary_factor} rotates {config.rotary_dim} of "
            f"{config.head_dim} dimensions of a head"
        )
    return problems


class _Fields:
    """Reads typed fields and collects all problems."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems: list[str] = []

    def value(self, name: str, default: object) -> object:
        found = self.values.get(name)
        return default if found is None else found

    def positive_int(self, name: str, default: int) -> int:
        return self._int(name, default, minimum=1)

    def natural_int(self, name: str, default: int) -> int:
        return self._int(name, default, minimum=0)

    def positive_float(self, name: str, default: float) -> float:
        found = self.value(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
            self.problems.append(f"{name} is {found!r}, expected a number above 0")
            return default
        return float(found)

    def boolean(self, name: str, default: bool) -> bool:
        found = self.value(name, default)
        if not isinstance(found, bool):
            self.problems.append(f"{name} is {found!r}, expected true or false")
            return default
        return found

    def layer_types(self) -> tuple[LayerKind, ...]:
        count = self.positive_int("num_hidden_layers", 32)
        interval = self.positive_int("full_attention_interval", 4)
        default = [_LAYER_KINDS[(i + 1) % interval == 0] for i in range(count)]
        found = self.value("layer_types", default)
        if not isinstance(found, list) or not all(kind in _LAYER_KINDS for kind in found):
            self.problems.append(f"layer_types has values other than {_LAYER_KINDS}")
            return ()
        if len(found) != count:
            self.problems.append(
                f"layer_types has {len(found)} entries, but num_hidden_layers is {count}"
            )
        return tuple(found)

    def _int(self, name: str, default: int, minimum: int) -> int:
        found = self.value(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < minimum:
            self.problems.append(f"{name} is {found!r}, expected an integer of at least {minimum}")
            return default
        return found
