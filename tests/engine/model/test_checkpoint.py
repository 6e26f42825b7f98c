"""Checkpoint files: every published layout is read, and errors report all problems at once."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from kvreg_service.core.errors import CheckpointError
from kvreg_service.model.checkpoint import (
    load_mtp_weights,
    load_weights,
    mtp_shapes,
    text_shapes,
    weights_digest,
)
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.testing import random_weights, tiny_config

CONFIG = tiny_config()
TIED = tiny_config(tie_word_embeddings=True)


def published(weights: dict[str, Tensor], prefix: str = "model.") -> dict[str, Tensor]:
    """The names in published files: all except lm_head have a prefix."""
    return {
        name if name.startswith("lm_head") else prefix + name: tensor.contiguous()
        for name, tensor in weights.items()
    }


def save(folder: Path, tensors: dict[str, Tensor], num_shards: int = 1) -> Path:
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for i in range(num_shards):
        shard = {name: tensors[name] for name in sorted(tensors)[i::num_shards]}
        file = f"model-{i + 1:05}-of-{num_shards:05}.safetensors"
        save_file(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(folder: Path, config: ModelConfig = CONFIG) -> dict[str, Tensor]:
    return load_weights(folder, config, dtype=torch.float32)


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", ""])
def test_every_published_layout_gives_the_same_weights(
    tmp_path: Path, prefix: str, num_shards: int
) -> None:
    weights = random_weights(CONFIG)
    save(tmp_path, published(weights, prefix), num_shards)
    assert_equal(load(tmp_path), weights)


def test_the_bundled_model_has_exactly_the_tensors_of_its_configuration(
    reference_path: Path,
) -> None:
    config = ModelConfig.from_path(reference_path)
    assert load(reference_path, config).keys() == text_shapes(config).keys()
    mtp = load_mtp_weights(reference_path, config, dtype=torch.float32)
    assert mtp.keys() == mtp_shapes(config).keys()


def test_a_model_without_a_prediction_head_gives_none(tmp_path: Path) -> None:
    save(tmp_path, published(random_weights(CONFIG)))
    assert load_mtp_weights(tmp_path, CONFIG, dtype=torch.float32) == {}


def test_vision_tensors_are_skipped_with_one_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = random_weights(CONFIG)
    tensors = published(weights, "model.language_model.")
    tensors |= {f"model.visual.blocks.{i}.weight": torch.zeros(2) for i in range(3)}
    save(tmp_path, tensors)
    with caplog.at_level(logging.INFO, logger="kvreg_service.model.checkpoint"):
        assert_equal(load(tmp_path), weights)
    assert [record.getMessage() for record in caplog.records] == [
        f"skipped 3 vision tensors of {tmp_path}"
    ]


def test_a_tied_model_ignores_a_stored_copy_of_its_embedding(tmp_path: Path) -> None:
    weights = random_weights(TIED)
    copy = {"lm_head.weight": weights["embed_tokens.weight"].clone()}
    save(tmp_path, published(weights) | copy)
    assert_equal(load(tmp_path, TIED), weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_matrices_take_the_wanted_type_and_decays_stay_exact(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    weights = random_weights(CONFIG)
    save(tmp_path, published(weights))
    loaded = load_weights(tmp_path, CONFIG, dtype=dtype)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    assert loaded["layers.0.mlp.up_proj.weight"].dtype == dtype
    for name in ("layers.0.linear_attn.A_log", "layers.0.linear_attn.dt_bias", "norm.weight"):
        assert torch.equal(loaded[name], weights[name].to(exact))


def test_narrow_files_are_widened(tmp_path: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in random_weights(CONFIG).items()}
    save(tmp_path, published(weights))
    assert_equal(load(tmp_path), {name: tensor.float() for name, tensor in weights.items()})


def test_progress_rises_to_the_total(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    save(tmp_path, published(weights), num_shards=2)
    seen: list[tuple[str, int, int]] = []
    load_weights(
        tmp_path, CONFIG, dtype=torch.float32, on_progress=lambda *report: seen.append(report)
    )
    names, done, totals = zip(*seen, strict=True)
    assert set(names) == set(weights)
    assert list(done) == sorted(done)
    assert {done[-1]} == set(totals) == {sum(tensor.nbytes for tensor in weights.values())}


def test_all_wrong_tensors_are_named_in_one_error(tmp_path: Path) -> None:
    tensors = published(random_weights(CONFIG))
    del tensors["model.norm.weight"]
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 5)
    tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(1)
    tensors["lm_head.weight"] = torch.zeros(CONFIG.vocab_size, CONFIG.hidden_size).long()
    save(tmp_path, tensors)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    for part in (
        "missing tensors: norm.weight, layers.1.self_attn.k_proj.weight",
        "surplus tensors: layers.7.mlp.up_proj.weight",
        "layers.0.mlp.up_proj.weight is (3, 5), expected (40, 24)",
        "lm_head.weight is I64",
    ):
        assert part in caught.value.message


@pytest.mark.parametrize("suffix", ["weight_packed", "weight_scale", "weight_scale_2"])
def test_a_quantised_checkpoint_is_called_quantised(tmp_path: Path, suffix: str) -> None:
    tensors = published(random_weights(CONFIG))
    tensors[f"model.layers.0.mlp.up_proj.{suffix}"] = torch.zeros(4, dtype=torch.uint8)
    save(tmp_path, tensors)
    with pytest.raises(CheckpointError, match="is quantised"):
        load(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing weight files: .*model\.safetensors"):
        load(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save(tmp_path, published(random_weights(CONFIG)), num_shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        load(tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 3}'])
def test_a_broken_index_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"index\.json is not a safetensors index"):
        load(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    save(tmp_path, published(random_weights(CONFIG)))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable"):
        load(tmp_path)


def test_the_digest_is_the_same_for_a_copy(tmp_path: Path, reference_path: Path) -> None:
    shutil.copy(reference_path / "model.safetensors", tmp_path)
    assert weights_digest(tmp_path) == weights_digest(reference_path)


def test_one_changed_bit_changes_the_digest(tmp_path: Path) -> None:
    save(tmp_path, published(random_weights(CONFIG)), num_shards=2)
    before = weights_digest(tmp_path)
    file = tmp_path / "model-00002-of-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert weights_digest(tmp_path) != before
