"""Reads safetensors checkpoints in the Hugging Face layout, tensor by tensor.

Owns the names and shapes of the tensors of a configuration, and the mapping of published names. It
does not know how layers use them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvreg_service.core.errors import CheckpointError
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.precision import accumulation_dtype

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called after each tensor with its name, the bytes read so far and the total bytes."""

_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
_VISION_PARTS = ("visual.", "vision_tower.", "vision_model.")
_QUANTISED_SUFFIXES = (
    "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale", "weight_scale_inv",
    "input_scale", "input_global_scale", "k_scale", "v_scale", "qweight", "qzeros", "scales",
)  # fmt: skip
_FLOAT_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# Small and sensitive: decays are exponentials of them, and norms scale whole layers.
_ACCUMULATION_SUFFIXES = ("A_log", "dt_bias", "norm.weight", "layernorm.weight")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint, from the header of its file."""

    file: Path
    stored_name: str
    shape: tuple[int, ...]
    stored_dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        count = 1
        for size in self.shape:
            count *= size
        return count * _FLOAT_DTYPES[self.stored_dtype]


def load_weights(
    path: Path | str,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    on_progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Reads the text model's tensors, named as in transformers without the ``model.`` prefix.

    Matrices come in ``dtype``; norms, ``A_log`` and ``dt_bias`` in fp32 (fp64 for fp64). Vision
    tensors are skipped with one log line; ``mtp.`` tensors are skipped without one, as
    ``load_mtp_weights`` reads them.

    Raises:
        CheckpointError: There is no readable safetensors file, the checkpoint is quantized, or
            tensors are missing, unexpected, not floating point or of a wrong shape. The message
            lists all of them.
    """
    stored = _list_tensors(Path(path))
    text = {name: tensor for name, tensor in stored.items() if not name.startswith("mtp.")}
    if config.tie_word_embeddings:
        text.pop("lm_head.weight", None)
    return _read(text, text_shapes(config), dtype, on_progress)


def load_mtp_weights(
    path: Path | str,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    on_progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Reads the tensors of the multi-token-prediction head; empty if the model has none.

    Raises:
        CheckpointError: See ``load_weights``.
    """
    stored = _list_tensors(Path(path))
    mtp = {name: tensor for name, tensor in stored.items() if name.startswith("mtp.")}
    return _read(mtp, mtp_shapes(config) if mtp else {}, dtype, on_progress)


def weights_digest(path: Path | str) -> str:
    """Returns the SHA-256 of the headers and contents of all safetensors files, as hex.

    Raises:
        CheckpointError: There are no safetensors files.
    """
    digest = hashlib.sha256()
    for file in _weight_files(Path(path)):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def text_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the text model's tensors, without the ``model.`` prefix."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab, hidden),
        "norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (vocab, hidden)
    for index, kind in enumerate(config.layer_types):
        mixer = _linear_shapes(config) if kind == "linear_attention" else _attention_shapes(config)
        layer = {**mixer, **_mlp_shapes(config)}
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def mtp_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the MTP head, whose layers are full attention."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.norm.weight": (hidden,),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
    }
    layer = {**_attention_shapes(config), **_mlp_shapes(config)}
    for index in range(config.mtp_num_hidden_layers):
        shapes |= {f"mtp.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _linear_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    channels = config.conv_channels
    shapes: dict[str, tuple[int, ...]] = {
        "A_log": (heads,),
        "dt_bias": (heads,),
        "conv1d.weight": (channels, 1, config.linear_conv_kernel_dim),
        "in_proj_qkv.weight": (channels, hidden),
        "in_proj_z.weight": (config.linear_value_size, hidden),
        "in_proj_b.weight": (heads, hidden),
        "in_proj_a.weight": (heads, hidden),
        "norm.weight": (config.linear_value_head_dim,),
        "out_proj.weight": (hidden, config.linear_value_size),
    }
    return {f"linear_attn.{name}": shape for name, shape in shapes.items()}


def _attention_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, head = config.hidden_size, config.head_dim
    outputs = {
        "q_proj": 2 * config.num_attention_heads * head,
        "k_proj": config.num_key_value_heads * head,
        "v_proj": config.num_key_value_heads * head,
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.weight": (size, hidden) for name, size in outputs.items()
    }
    shapes["o_proj.weight"] = (hidden, config.num_attention_heads * head)
    if config.attention_bias:
        shapes |= {f"{name}.bias": (size,) for name, size in outputs.items()}
        shapes["o_proj.bias"] = (hidden,)
    shapes |= {"q_norm.weight": (head,), "k_norm.weight": (head,)}
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _mlp_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _weight_files(path: Path) -> list[Path]:
    """Returns the files of a checkpoint folder: those of its index, or the single file."""
    index = path / "model.safetensors.index.json"
    single = path / "model.safetensors"
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = sorted({path / str(name) for name in weight_map.values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index} is not a safetensors index: {error!r}") from error
    else:
        files = [single]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(f"missing weight files: {', '.join(missing)}", missing=missing)
    return files


def _list_tensors(path: Path) -> dict[str, StoredTensor]:
    """Reads the text and MTP tensors from the headers of a checkpoint, under plain names."""
    found: dict[str, StoredTensor] = {}
    num_vision = 0
    for file in _weight_files(path):
        try:
            with safe_open(file, framework="pt") as opened:
                for stored_name in opened.keys():  # noqa: SIM118 - not a mapping
                    if any(part in stored_name for part in _VISION_PARTS):
                        num_vision += 1
                        continue
                    header = opened.get_slice(stored_name)
                    found[_plain_name(stored_name)] = StoredTensor(
                        file, stored_name, tuple(header.get_shape()), header.get_dtype()
                    )
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
    if num_vision:
        logger.info("skipped %d vision tensors of %s", num_vision, path)
    quantised = [name for name in found if name.endswith(_QUANTISED_SUFFIXES)]
    if quantised:
        raise CheckpointError(
            f"{path} is quantised ({len(quantised)} tensors such as {quantised[0]}); this engine "
            "reads fp32, fp16 and bf16 weights only",
            quantised=quantised,
        )
    return found


def _plain_name(stored_name: str) -> str:
    """Removes the prefix, which depends on how the checkpoint was exported."""
    for prefix in _PREFIXES:
        if stored_name.startswith(prefix):
            return stored_name.removeprefix(prefix)
    return stored_name


def _read(
    stored: Mapping[str, StoredTensor],
    expected: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    on_progress: Progress | None,
) -> dict[str, Tensor]:
    """Checks all headers, then reads the tensors one by one."""
    problems = _problems(stored, expected)
    if problems:
        raise CheckpointError("; ".join(problems), problems=tuple(problems))
    total_bytes = sum(tensor.nbytes for tensor in stored.values())
    done_bytes = 0
    weights: dict[str, Tensor] = {}
    for file in sorted({tensor.file for tensor in stored.values()}):
        with safe_open(file, framework="pt") as opened:
            for name, tensor in stored.items():
                if tensor.file != file:
                    continue
                exact = name.endswith(_ACCUMULATION_SUFFIXES)
                weights[name] = opened.get_tensor(tensor.stored_name).to(
                    accumulation_dtype(dtype) if exact else dtype
                )
                done_bytes += tensor.nbytes
                if on_progress is not None:
                    on_progress(name, done_bytes, total_bytes)
    return weights


def _problems(
    stored: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Returns one message per kind of mismatch, each with all of its tensors."""
    missing = [name for name in expected if name not in stored]
    surplus = [name for name in stored if name not in expected]
    misshaped = [
        f"{name} is {stored[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]
    not_float = [
        f"{name} is {tensor.stored_dtype}"
        for name, tensor in stored.items()
        if tensor.stored_dtype not in _FLOAT_DTYPES
    ]
    kinds = {
        "missing tensors": missing,
        "surplus tensors": surplus,
        "wrong shapes": misshaped,
        "not floating point": not_float,
    }
    return [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
