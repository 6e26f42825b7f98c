"""Exports the checkpoint as a model folder in the Hugging Face layout.

Owns the dtype of each weight and the two JSON files. The files of the tokenizer are copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from kvreg_training.model.reference_model import ReferenceModel
from kvreg_training.model.weights_file import load_weights
from kvreg_training.ops.torch_ops import TorchOps
from kvreg_training.shape import (
    END_OF_MESSAGE_ID,
    PAD_TOKEN_ID,
    ReferenceShape,
)
from kvreg_training.tokenizer import copy_tokenizer

_MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class ExportedSize:
    """Parameters of the trunk with embedding and ``lm_head``, and of the MTP head."""

    trunk: int
    mtp: int


def export(trunk: Path, mtp: Path, tokenizer_folder: Path, target: Path) -> ExportedSize:
    """Writes a model folder from the trained weights.

    Raises:
        RuntimeError: A weight is missing or unexpected.
    """
    shape = ReferenceShape()
    model = ReferenceModel(shape, TorchOps())
    load_weights(model, trunk, mtp)
    copy_tokenizer(tokenizer_folder, target)
    weights = {
        name: tensor.to(_dtype(name)).contiguous().clone()
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    _write_json(target / "config.json", shape.config())
    _write_json(target / "generation_config.json", _generation_config())
    num_mtp = sum(tensor.numel() for name, tensor in weights.items() if name.startswith("mtp."))
    num_all = sum(tensor.numel() for tensor in weights.values())
    return ExportedSize(trunk=num_all - num_mtp, mtp=num_mtp)


def _dtype(name: str) -> torch.dtype:
    """The decay of a recurrent state and the norms are sensitive and small."""
    is_sensitive = name.endswith(("A_log", "dt_bias")) or "norm" in name
    return torch.float32 if is_sensitive else torch.bfloat16


def _generation_config() -> dict[str, object]:
    return {
        "do_sample": False,
        "eos_token_id": [END_OF_MESSAGE_ID, PAD_TOKEN_ID],
        "max_new_tokens": _MAX_NEW_TOKENS,
        "pad_token_id": PAD_TOKEN_ID,
    }


def _write_json(path: Path, contents: dict[str, object]) -> None:
    path.write_text(json.dumps(contents, indent=2, sort_keys=True) + "\n", encoding="utf-8")
