"""Sampling parameters of a model, for requests that do not choose their own.

Owns the reading of ``generation_config.json`` as far as it is about sampling.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvreg_service.core.errors import CheckpointError
from kvreg_service.core.requests.sampling_params import SamplingParams

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")


def read_sampling_defaults(model_path: Path) -> SamplingParams:
    """Return what the model's authors chose; greedy when they did not ask for sampling.

    Raises:
        CheckpointError: The file is there and cannot be read.
    """
    path = model_path / "generation_config.json"
    if not path.exists():
        return SamplingParams()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise CheckpointError(f"{path} cannot be read: {err}") from err
    if not isinstance(config, dict) or not config.get("do_sample"):
        return SamplingParams()
    chosen = {name: float(config[name]) for name in _NUMBERS if _is_number(config.get(name))}
    top_k = config.get("top_k")
    return SamplingParams(
        temperature=chosen.get("temperature", 1.0),
        top_p=chosen.get("top_p", 1.0),
        top_k=top_k if isinstance(top_k, int) and top_k > 0 else None,
        min_p=chosen.get("min_p", 0.0),
        repetition_penalty=chosen.get("repetition_penalty", 1.0),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
