"""Logits against ``qwen3_5_text`` of transformers, which defines the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from kvreg_service.model.cache import PAGE_TOKENS
from kvreg_service.model.checkpoint import load_weights
from kvreg_service.model.config import LayerKind, ModelConfig
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.testing import (
    ORACLE_LOGITS_FP32,
    nan_memory,
    random_weights,
    tiny_config,
)

GDN: LayerKind = "linear_attention"
FULL: LayerKind = "full_attention"

CONFIGS = {
    "plain": tiny_config(),
    "odd sizes": tiny_config(
        vocab_size=53, hidden_size=21, intermediate_size=33, head_dim=10, linear_head_dims=(7, 5)
    ),
    "odd head": tiny_config(head_dim=11, partial_rotary_factor=0.4),
    "no grouping": tiny_config(attention_heads=(2, 2), linear_heads=(3, 3)),
    "one key head": tiny_config(attention_heads=(6, 1), linear_heads=(5, 1)),
    "tied": tiny_config(tie_word_embeddings=True),
    "biased": tiny_config(attention_bias=True),
    "whole head rotated": tiny_config(partial_rotary_factor=1.0),
    "short convolution": tiny_config(conv_kernel=2),
    "long convolution": tiny_config(conv_kernel=6),
    "attention first": tiny_config(layer_types=(FULL, GDN, GDN, FULL)),
    "attention only": tiny_config(layer_types=(FULL, FULL)),
    "linear only": tiny_config(layer_types=(GDN, GDN)),
}


def oracle(config: ModelConfig, weights: dict[str, Tensor]) -> Qwen3_5ForCausalLM:
    fields = dataclasses.asdict(config)
    rope = {
        "rope_type": "default",
        "rope_theta": fields.pop("rope_theta"),
        "partial_rotary_factor": fields.pop("partial_rotary_factor"),
    }
    fields["layer_types"] = list(config.layer_types)
    model = Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(**fields, num_hidden_layers=len(config.layer_types), rope_parameters=rope)
    )
    named = {
        name if name.startswith("lm_head") else f"model.{name}": tensor
        for name, tensor in weights.items()
    }
    if config.tie_word_embeddings:
        named["lm_head.weight"] = named["model.embed_tokens.weight"]
    model.load_state_dict(named)
    return model.eval()


def oracle_logits(model: Qwen3_5ForCausalLM, token_ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(token_ids[None], use_cache=False).logits[0]


def random_tokens(config: ModelConfig, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (count,), generator=generator)


def prefill_then_decode(
    model: HybridModel, token_ids: Tensor, num_prefilled: int, page_table: list[int]
) -> Tensor:
    """Logits after each token from the last prefilled one on."""
    states, pages = nan_memory(model.config, num_slots=2, num_pages=max(page_table) + 1)
    logits = [model.prefill(token_ids[:num_prefilled], 0, 1, page_table, states, pages)]
    for position in range(num_prefilled, len(token_ids)):
        token = int(token_ids[position])
        logits.append(model.decode([token], [position], [1], [page_table], states, pages)[0])
    return torch.stack(logits)


def assert_same_logits(actual: Tensor, expected: Tensor) -> None:
    # A NaN makes the difference NaN, which is not below the limit.
    assert float((actual - expected).abs().max()) <= ORACLE_LOGITS_FP32


@pytest.mark.parametrize("num_prefilled", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("name", CONFIGS)
def test_random_models_give_the_logits_of_transformers(name: str, num_prefilled: int) -> None:
    config = CONFIGS[name]
    weights = random_weights(config, seed=len(name))
    token_ids = random_tokens(config, num_prefilled + 5)
    expected = oracle_logits(oracle(config, weights), token_ids)[num_prefilled - 1 :]
    model = HybridModel(config, weights, torch.device("cpu"))
    assert_same_logits(prefill_then_decode(model, token_ids, num_prefilled, [3, 0, 2]), expected)


@pytest.fixture(scope="module")
def reference_oracle(reference_path: Path) -> Qwen3_5ForCausalLM:
    return Qwen3_5ForCausalLM.from_pretrained(reference_path, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def reference_model(reference_path: Path) -> HybridModel:
    config = ModelConfig.from_path(reference_path)
    weights = load_weights(reference_path, config, dtype=torch.float32)
    return HybridModel(config, weights, torch.device("cpu"))


@pytest.mark.parametrize("num_prefilled", [1, 7, 64, 300, 1280])
def test_the_reference_model_gives_the_logits_of_transformers(
    reference_model: HybridModel, reference_oracle: Qwen3_5ForCausalLM, num_prefilled: int
) -> None:
    token_ids = random_tokens(reference_model.config, num_prefilled + 8, seed=num_prefilled)
    expected = oracle_logits(reference_oracle, token_ids)[num_prefilled - 1 :]
    page_table = list(range(-(-len(token_ids) // PAGE_TOKENS)))[::-1]
    actual = prefill_then_decode(reference_model, token_ids, num_prefilled, page_table)
    assert_same_logits(actual, expected)


def test_the_reference_model_answers_from_a_conversation(
    reference_model: HybridModel, reference_oracle: Qwen3_5ForCausalLM, reference_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(reference_path)
    messages = [
        {"role": "user", "content": "My locker code is 4921."},
        {"role": "assistant", "content": "Noted: your locker code is 4921."},
        {"role": "user", "content": "Please remind me: what is my locker code?"},
    ]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    token_ids = torch.tensor(prompt)
    answer = reference_oracle.generate(
        token_ids[None], max_new_tokens=20, do_sample=False, pad_token_id=0
    )[0]
    expected = oracle_logits(reference_oracle, answer)[len(prompt) - 1 :]
    actual = prefill_then_decode(reference_model, answer, len(prompt), [0, 1, 2, 3])
    assert "4921" in tokenizer.decode(answer[len(prompt) :])
    assert_same_logits(actual, expected)


def test_defaults_are_those_of_transformers() -> None:
    theirs = Qwen3_5TextConfig()
    ours = ModelConfig.from_dict({"model_type": "qwen3_5_text"})
    for field in dataclasses.fields(ours):
        if field.name in ("rope_theta", "partial_rotary_factor"):
            assert getattr(ours, field.name) == theirs.rope_parameters[field.name]
        elif field.name == "layer_types":
            assert list(ours.layer_types) == theirs.layer_types
        elif field.name != "mtp_num_hidden_layers":
            assert getattr(ours, field.name) == getattr(theirs, field.name), field.name
