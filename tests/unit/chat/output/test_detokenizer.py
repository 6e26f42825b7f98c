"""Streamed text is the decoded text, in whole characters, up to the first stop string."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvreg_service.chat.output.detokenizer import IncrementalDetokenizer
from kvreg_service.chat.tokens.tokenizer import Tokenizer

_IDS = st.lists(st.integers(0, 2047), max_size=30)
_STOP = st.lists(st.text("ab \n", min_size=1, max_size=4), max_size=3)


ByteTokens = dict[int, int]


@pytest.fixture(scope="module")
def byte_tokens(tokenizer: Tokenizer) -> ByteTokens:
    """The token of each single byte."""
    ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return {byte: ids[bytes([byte])] for byte in range(256)}


def _run(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> tuple[list[str], bool]:
    stream = IncrementalDetokenizer(tokenizer, stop)
    texts = []
    for token_id in ids:
        step = stream.push(token_id)
        texts.append(step.text)
        if step.is_stopped:
            return texts, True
    return [*texts, stream.flush()], False


def _first_completed_stop(text: str, stop: list[str]) -> str | None:
    """The text before the stop string that is completed first, by trying every length."""
    for end in range(len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))]
    return None


@given(ids=_IDS)
def test_the_pieces_join_to_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    texts, _ = _run(tokenizer, ids, [])
    visible = [token_id for token_id in ids if not tokenizer.is_special(token_id)]
    assert "".join(texts) == tokenizer.decode(visible)


@given(text=st.text(max_size=20))
def test_no_piece_holds_half_a_character(
    tokenizer: Tokenizer, byte_tokens: ByteTokens, text: str
) -> None:
    assume("\ufffd" not in text)
    texts, _ = _run(tokenizer, [byte_tokens[byte] for byte in text.encode()], [])
    assert "\ufffd" not in "".join(texts)


@given(text=st.text("ab \n", max_size=20), stop=_STOP, is_bytewise=st.booleans())
def test_the_answer_ends_before_the_first_completed_stop_string(
    tokenizer: Tokenizer, byte_tokens: ByteTokens, text: str, stop: list[str], is_bytewise: bool
) -> None:
    ids = tokenizer.encode(text)
    if is_bytewise:
        ids = [byte_tokens[byte] for byte in text.encode()]
    texts, is_stopped = _run(tokenizer, ids, stop)
    expected = _first_completed_stop(text, stop)
    assert ("".join(texts), is_stopped) == (
        text if expected is None else expected,
        expected is not None,
    )


def test_one_token_may_complete_two_stop_strings(tokenizer: Tokenizer) -> None:
    (token_id,) = tokenizer.encode(" the")
    assert IncrementalDetokenizer(tokenizer, [" the", "h"]).push(token_id).text == " t"


def test_the_stop_string_that_ended_the_answer_is_named(tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(tokenizer, ["b", "ab", "c"])
    assert stream.stopped_by is None
    for token_id in tokenizer.encode("xabc"):
        stream.push(token_id)
    assert stream.stopped_by == "ab"


def test_what_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(tokenizer, ["END"])
    texts = [stream.push(token_id).text for token_id in tokenizer.encode_segment("xE")]
    assert "".join(texts) == "x"


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(tokenizer)
    assert stream.push(next(iter(tokenizer.eos_token_ids))).text == ""


def test_think_markup_has_text(tokenizer: Tokenizer) -> None:
    (token_id,) = tokenizer.encode("<think>")
    assert IncrementalDetokenizer(tokenizer).push(token_id).text == "<think>"


def test_after_a_stop_string_nothing_follows(tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(tokenizer, ["a"])
    for token_id in tokenizer.encode("ba"):
        stream.push(token_id)
    assert (stream.push(tokenizer.encode("c")[0]).text, stream.flush()) == ("", "")


def test_an_unfinished_character_ends_as_the_replacement_character(
    tokenizer: Tokenizer, byte_tokens: ByteTokens
) -> None:
    stream = IncrementalDetokenizer(tokenizer)
    stream.push(byte_tokens[0xF0])
    assert stream.flush() == "\ufffd"
