"""Default sampling parameters from a model's generation config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvreg_service.core.errors import CheckpointError
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.model.generation_config import read_sampling_defaults


def test_model_without_a_generation_config_is_greedy(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path).is_greedy


def test_generation_config_without_do_sample_is_greedy(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.7}')
    assert read_sampling_defaults(tmp_path).is_greedy


def test_generation_config_sets_the_sampling_defaults(tmp_path: Path) -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert read_sampling_defaults(tmp_path) == SamplingParams(temperature=0.6, top_p=0.95, top_k=20)


def test_malformed_generation_config_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read_sampling_defaults(tmp_path)
