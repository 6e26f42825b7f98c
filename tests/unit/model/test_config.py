"""Parsing of ``config.json``, and errors that report all problems at once."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from kvreg_service.core.errors import CheckpointError
from kvreg_service.model.config import ModelConfig

MINIMAL: dict[str, Any] = {"model_type": "qwen3_5_text"}


def test_the_bundled_model_is_read_from_its_folder() -> None:
    folder = resources.files("kvreg_service.reference_model")
    config = ModelConfig.from_path(Path(str(folder)))
    assert config.layer_types.count("linear_attention") == config.num_linear_layers == 6
    assert config.num_attention_layers == 2
    assert config.conv_channels == 2 * 2 * 32 + 4 * 32
    assert config.rotary_dim == 16


def test_a_multimodal_configuration_holds_the_text_model() -> None:
    text = {**MINIMAL, "hidden_size": 64, "vocab_size": 99}
    config = ModelConfig.from_dict({"model_type": "qwen3_5", "text_config": text})
    assert (config.hidden_size, config.vocab_size) == (64, 99)


def test_a_multimodal_configuration_says_outside_whether_embeddings_are_tied() -> None:
    raw = {"model_type": "qwen3_5", "text_config": MINIMAL, "tie_word_embeddings": True}
    assert ModelConfig.from_dict(raw).tie_word_embeddings


def test_layer_types_follow_from_the_interval() -> None:
    config = ModelConfig.from_dict(
        {**MINIMAL, "num_hidden_layers": 5, "full_attention_interval": 2}
    )
    assert [kind == "full_attention" for kind in config.layer_types] == [False, True] * 2 + [False]


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"rope_theta": 5e5}, "partial_rotary_factor": 0.5},
        {"rope_scaling": {"type": "default"}, "rope_theta": 5e5, "partial_rotary_factor": 0.5},
        {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
    ],
)
def test_rotary_fields_are_found_in_every_published_place(fields: dict[str, Any]) -> None:
    config = ModelConfig.from_dict({**MINIMAL, **fields})
    assert (config.rope_theta, config.partial_rotary_factor) == (5e5, 0.5)


def test_an_odd_number_of_rotated_dimensions_is_rounded_up_to_pairs() -> None:
    config = ModelConfig.from_dict({**MINIMAL, "head_dim": 10, "partial_rotary_factor": 0.5})
    assert config.rotary_dim == 6


def test_all_wrong_fields_are_named_in_one_error() -> None:
    wrong = {
        "model_type": "llama",
        "hidden_size": -1,
        "head_dim": "wide",
        "vocab_size": True,
        "rms_norm_eps": 0,
        "attention_bias": 1,
        "hidden_act": "gelu",
        "attn_output_gate": False,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention"],
        "rope_parameters": {"rope_type": "yarn", "rope_theta": "far"},
    }
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.from_dict(wrong)
    for name in (*wrong, "rope_type", "rope_theta"):
        if name != "rope_parameters":
            assert name in caught.value.message
    assert len(caught.value.fields["problems"]) == 11  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, "num_key_value_heads"),
        ({"linear_num_value_heads": 6, "linear_num_key_heads": 4}, "linear_num_key_heads"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types"),
    ],
)
def test_fields_that_contradict_each_other_are_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        ModelConfig.from_dict({**MINIMAL, **fields})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        ModelConfig.from_path(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.from_path(file)


def test_an_error_from_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**MINIMAL, "head_dim": 0}))
    with pytest.raises(CheckpointError, match=r"config\.json: head_dim is 0"):
        ModelConfig.from_path(tmp_path)
