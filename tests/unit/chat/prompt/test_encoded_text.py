"""Tokens reused from a text with a common prefix equal those of a fresh encoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.encoded_text import TextEncoder
from kvreg_service.chat.prompt.special_token_escaper import SpecialTokenEscaper
from kvreg_service.chat.tokens.tokenizer import Tokenizer

# The last two share a prefix: which of them occurs depends on the text that follows.
_PIECES = ["a", "b", "\n", "\ufdd0", "<|im_start|>", "<|im_end|>", "<|im_end|>!"]
_TEXT = st.lists(st.sampled_from(_PIECES), max_size=6).map("".join)


@pytest.fixture(scope="module")
def encoder(model_path: Path) -> TextEncoder:
    definition = json.loads((model_path / "tokenizer.json").read_text("utf-8"))
    longer = {**definition["added_tokens"][-1], "id": 2048, "content": "<|im_end|>!"}
    definition["added_tokens"].append(longer)
    tokenizer = Tokenizer(definition)
    escaper = SpecialTokenEscaper(
        special_tokens=tokenizer.special_tokens, added_tokens=tokenizer.added_tokens
    )
    return TextEncoder(tokenizer, escaper, EchoIndex(tokenizer))


@given(head=_TEXT, tail=_TEXT, other_tail=_TEXT)
def test_reuse_changes_nothing(encoder: TextEncoder, head: str, tail: str, other_tail: str) -> None:
    like = encoder.encode(head + other_tail, "tenant")
    expected = encoder.encode(head + tail, "tenant")
    assert encoder.encode(head + tail, "tenant", like) == expected
