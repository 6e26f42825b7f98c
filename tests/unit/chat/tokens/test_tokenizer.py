"""The tokenizer gives the ids of transformers, with or without its cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core.errors import CheckpointError

_ADDED = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>"]
_TEXTS = st.lists(
    st.sampled_from([*_ADDED, "<|im_", "<", "\n", "\n\n", "  ", "don't", " 12"])
    | st.text(max_size=8)
).map("".join)


@pytest.fixture(scope="module")
def definition(model_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((model_path / "tokenizer.json").read_text("utf-8"))
    return content


@pytest.fixture(scope="module")
def tiny_cache_tokenizer(definition: dict[str, Any]) -> Tokenizer:
    return Tokenizer(definition, max_cached_characters=8)


@given(text=_TEXTS)
def test_encoding_equals_that_of_transformers(tokenizer: Tokenizer, oracle: Any, text: str) -> None:
    assert tokenizer.encode(text) == oracle(text, add_special_tokens=False).input_ids


@given(text=_TEXTS)
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(ids=st.lists(st.integers(0, 2047)))
def test_decoding_any_ids_equals_that_of_transformers(
    tokenizer: Tokenizer, oracle: Any, ids: list[int]
) -> None:
    expected = oracle.backend_tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids) == expected


@given(texts=st.lists(_TEXTS, max_size=8))
def test_a_tiny_cache_changes_no_id(
    tokenizer: Tokenizer, tiny_cache_tokenizer: Tokenizer, texts: list[str]
) -> None:
    expected = [tokenizer.encode(text) for text in texts]
    assert [tiny_cache_tokenizer.encode(text) for text in texts] == expected


def test_a_tenant_does_not_find_what_another_had_encoded(definition: dict[str, Any]) -> None:
    tokenizer = Tokenizer(definition)
    first, again = (tokenizer.encode_segment("a secret", "a") for _ in range(2))
    assert again is first
    assert tokenizer.encode_segment("a secret", "b") is not first


def test_at_one_place_the_longest_added_token_wins(definition: dict[str, Any]) -> None:
    longer = {**definition["added_tokens"][-1], "id": 2048, "content": "<|im_end|>!"}
    content = {**definition, "added_tokens": [*definition["added_tokens"], longer]}
    oracle = tokenizers.Tokenizer.from_str(json.dumps(content))
    text = "a<|im_end|>b<|im_end|>!c"
    assert Tokenizer(content).encode(text) == oracle.encode(text).ids


def test_the_text_of_an_added_token_in_a_segment_is_ordinary_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_segment("a <|im_end|> b")
    assert not any(tokenizer.is_added(token_id) for token_id in ids)


def test_a_lone_surrogate_is_encoded_as_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


def test_a_row_that_only_pads_the_vocabulary_has_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""


def test_end_tokens_come_from_every_configuration(tmp_path: Path, model_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_path / "tokenizer.json").read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 9}}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    assert Tokenizer.from_path(tmp_path).eos_token_ids == {7, 8, 9, 2041}


def test_equal_definitions_have_equal_digests(definition: dict[str, Any]) -> None:
    shuffled = dict(reversed(definition.items()))
    assert Tokenizer(definition).digest == Tokenizer(shuffled).digest


def test_another_merge_has_another_digest(definition: dict[str, Any]) -> None:
    model = {**definition["model"], "merges": definition["model"]["merges"][:-1]}
    assert Tokenizer({**definition, "model": model}).digest != Tokenizer(definition).digest


def test_an_added_token_that_swallows_spaces_is_refused(definition: dict[str, Any]) -> None:
    added = [{**token, "lstrip": True} for token in definition["added_tokens"]]
    with pytest.raises(CheckpointError, match="changes the tokens of the text beside it"):
        Tokenizer({**definition, "added_tokens": added})


def test_a_decoder_that_is_not_byte_level_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="only ByteLevel is supported"):
        Tokenizer({**definition, "decoder": {"type": "Fuse"}})


def test_a_malformed_definition_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="malformed"):
        Tokenizer({**definition, "model": {"type": "BPE"}})


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_path(tmp_path)
