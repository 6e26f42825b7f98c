"""Weights between the stages of training: fp32 safetensors, complete or filtered by prefix.

``export`` writes the final checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn


def save_weights(model: nn.Module, path: Path, *, prefix: str = "") -> None:
    """Writes the parameters whose names start with ``prefix``, atomically."""
    weights = {
        name: tensor.detach().clone().contiguous()
        for name, tensor in model.state_dict().items()
        if name.startswith(prefix)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file(weights, unfinished)
    unfinished.replace(path)


def load_weights(model: nn.Module, *paths: Path) -> None:
    """Reads parameters in fp32; later files override earlier ones.

    Raises:
        RuntimeError: A parameter of ``model`` is missing, or the files have an unexpected one.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in paths:
        weights |= {name: tensor.float() for name, tensor in load_file(path).items()}
    model.load_state_dict(weights, strict=True)
