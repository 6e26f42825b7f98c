"""The bundled tokenizer."""

from __future__ import annotations

from random import Random

import pytest
from tokenizers import Tokenizer

from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.data.rendering import render
from kvreg_training.shape import (
    END_OF_MESSAGE_ID,
    PAD_TOKEN_ID,
    ReferenceShape,
)
from kvreg_training.tokenizer import ADDED_TOKENS, load_tokenizer

UNUSUAL_TEXTS = [
    "",
    "Hello wörld - 日本語 🙂 4921\n\n  x\t",
    "naïve\u0301 \u212b \x00\x7f\r\n",
    bytes(range(128, 256)).decode("latin-1"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(REFERENCE_MODEL_PATH)


@pytest.mark.parametrize("text", UNUSUAL_TEXTS)
def test_any_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_chats_survive_encoding_and_decoding(tokenizer: Tokenizer) -> None:
    rng = Random(5)
    for _ in range(100):
        text = render(make_chat(rng, Stage.MIXED)).text
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_each_added_token_is_one_token(tokenizer: Tokenizer) -> None:
    lengths = [len(tokenizer.encode(content).ids) for content in ADDED_TOKENS]
    assert lengths == [1] * len(ADDED_TOKENS)


def test_the_shape_names_the_ids_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    shape = ReferenceShape()
    named = (shape.vocab_size, PAD_TOKEN_ID, END_OF_MESSAGE_ID)
    ids = (tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>"))
    assert named == (tokenizer.get_vocab_size(), *ids)
