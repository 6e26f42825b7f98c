"""Tokenized chats and their batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_training.data.dataset import (
    ChatSet,
    make_held_out_set,
    make_training_set,
)
from kvreg_training.data.generator import Stage
from kvreg_training.data.padding import pad
from kvreg_training.shape import END_OF_MESSAGE_ID
from kvreg_training.tokenizer import load_tokenizer
from kvreg_training.trainers.batch_stream import BatchStream
from kvreg_training.trainers.ranks import Ranks

NUM_CHATS = 120


@pytest.fixture(scope="module")
def chats() -> ChatSet:
    tokenizer = load_tokenizer(REFERENCE_MODEL_PATH)
    return make_training_set(Stage.SHORT, 7, NUM_CHATS, tokenizer, lambda _: None)


def test_a_saved_set_is_read_back(chats: ChatSet, tmp_path: Path) -> None:
    path = tmp_path / "chats.npz"
    chats.save(path)
    read = ChatSet.load(path)
    for index in range(len(chats)):
        for array, expected in zip(read.chat(index), chats.chat(index), strict=True):
            assert array.tobytes() == expected.tobytes()


def test_a_batch_is_padded_with_weightless_tokens(chats: ChatSet) -> None:
    token_ids, weights = pad(chats, [0, 1, 2])
    lengths = chats.lengths[:3]
    assert token_ids.shape == weights.shape == (3, lengths.max())
    for row, length in enumerate(lengths):
        assert not weights[row, length:].any()


def test_batches_stay_within_the_number_of_tokens(chats: ChatSet) -> None:
    budget = int(chats.lengths.max()) * 2
    stream = BatchStream(chats, tokens_per_batch=budget, seed=0, ranks=Ranks(0, 1))
    for _ in range(30):
        token_ids, _ = stream.next()
        assert token_ids.numel() <= budget


def test_one_pass_takes_every_chat_once(chats: ChatSet) -> None:
    stream = BatchStream(chats, tokens_per_batch=1000, seed=0, ranks=Ranks(0, 1))
    seen: list[bytes] = []
    while len(seen) < len(chats):
        token_ids, weights = stream.next()
        for row, has_weight in zip(token_ids, weights > 0, strict=True):
            seen.append(
                row[: int(has_weight.nonzero().max()) + 1].numpy().astype("uint16").tobytes()
            )
    assert sorted(seen) == sorted(chats.chat(index)[0].tobytes() for index in range(len(chats)))


def test_ranks_take_different_chats_of_one_step(chats: ChatSet) -> None:
    streams = [
        BatchStream(chats, tokens_per_batch=1000, seed=0, ranks=Ranks(rank, 2)) for rank in range(2)
    ]
    for _ in range(10):
        first, second = ({row.tobytes() for row in stream.next()[0].numpy()} for stream in streams)
        assert not first & second


def test_answer_spans_end_with_the_end_marker() -> None:
    tokenizer = load_tokenizer(REFERENCE_MODEL_PATH)
    held_out = make_held_out_set(8, 30, tokenizer, lambda _: None)
    for index, answers in enumerate(held_out.answers):
        token_ids, _ = held_out.chats.chat(index)
        assert {int(token_ids[answer.end - 1]) for answer in answers} == {END_OF_MESSAGE_ID}
