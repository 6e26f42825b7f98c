"""Tokenized chats with a loss weight per token, and their file format.

Owns the arrays. ``trainers.batch_stream`` groups them into steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer  # type: ignore[import-untyped]

from kvreg_service.reference_model.grammar.messages import Ask
from kvreg_training.data.chat import Chat
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.data.rendering import RenderedChat, render

MAX_CHAT_TOKENS = 1536
"""Longer chats are left out: one of them would fill a step."""

OnProgress = Callable[[int], None]
"""Called with the number of chats made since the last call."""


@dataclass(frozen=True)
class ChatSet:
    """Concatenated chats.

    Shapes:
        token_ids [N] uint16; weights [N] float16; offsets [chats + 1] int64, where chat i is
        [offsets[i], offsets[i + 1]).
    """

    token_ids: NDArray[np.uint16]
    weights: NDArray[np.float16]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each chat."""
        return np.diff(self.offsets)

    def chat(self, index: int) -> tuple[NDArray[np.uint16], NDArray[np.float16]]:
        """Return the token ids and weights of one chat, as views."""
        span = slice(self.offsets[index], self.offsets[index + 1])
        return self.token_ids[span], self.weights[span]

    def save(self, path: Path) -> None:
        """Writes the arrays to an ``.npz`` file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, token_ids=self.token_ids, weights=self.weights, offsets=self.offsets)

    @classmethod
    def load(cls, path: Path) -> ChatSet:
        """Reads what ``save`` wrote."""
        with np.load(path) as arrays:
            return cls(arrays["token_ids"], arrays["weights"], arrays["offsets"])


@dataclass(frozen=True)
class AnswerSpan:
    """The tokens [start, end) of one answer with its end marker, relative to its chat."""

    ask: Ask
    start: int
    end: int


@dataclass(frozen=True)
class HeldOutSet:
    """Chats of the MIXED stage with the spans of their answers, for teacher-forced scores."""

    chats: ChatSet
    answers: tuple[tuple[AnswerSpan, ...], ...]


def make_training_set(
    stage: Stage, seed: int, num_chats: int, tokenizer: Tokenizer, on_progress: OnProgress
) -> ChatSet:
    """Generate ``num_chats`` chats of ``stage``, without those that are too long."""
    rng = Random(seed)
    collector = _Collector(tokenizer)
    for _ in range(num_chats):
        collector.try_add(render(make_chat(rng, stage), boosts_values=True))
        on_progress(1)
    return collector.chat_set()


def make_held_out_set(
    seed: int, num_chats: int, tokenizer: Tokenizer, on_progress: OnProgress
) -> HeldOutSet:
    """Generate exactly ``num_chats`` chats of the MIXED stage that are not too long."""
    rng = Random(seed)
    collector = _Collector(tokenizer)
    answers: list[tuple[AnswerSpan, ...]] = []
    while len(answers) < num_chats:
        chat = make_chat(rng, Stage.MIXED)
        rendered = render(chat)
        starts = collector.try_add(rendered)
        if starts is not None:
            answers.append(_answer_spans(chat, rendered, starts))
            on_progress(1)
    return HeldOutSet(collector.chat_set(), tuple(answers))


def _answer_spans(
    chat: Chat, rendered: RenderedChat, token_starts: NDArray[np.int64]
) -> tuple[AnswerSpan, ...]:
    asks = [message.ask for message in chat.messages if message.role == "assistant"]
    spans = []
    for ask, answer in zip(asks, rendered.answers, strict=True):
        start, end = np.searchsorted(token_starts, [answer.start, answer.end])
        assert ask is not None, "the generator names the kind of every answer"
        spans.append(AnswerSpan(ask, int(start), int(end)))
    return tuple(spans)


class _Collector:
    """Tokenizes chats and concatenates them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[NDArray[np.uint16]] = []
        self._weights: list[NDArray[np.float16]] = []

    def try_add(self, rendered: RenderedChat) -> NDArray[np.int64] | None:
        """Returns the character offset of each token, or None if the chat is too long."""
        encoding = self._tokenizer.encode(rendered.text)
        if len(encoding.ids) > MAX_CHAT_TOKENS:
            return None
        token_starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        span_starts = np.array([span.start for span in rendered.spans])
        span_weights = np.array([span.weight for span in rendered.spans], dtype=np.float16)
        spans = np.searchsorted(span_starts, token_starts, side="right") - 1
        self._token_ids.append(np.array(encoding.ids, dtype=np.uint16))
        self._weights.append(span_weights[spans])
        return token_starts

    def chat_set(self) -> ChatSet:
        lengths = [len(token_ids) for token_ids in self._token_ids]
        return ChatSet(
            np.concatenate(self._token_ids),
            np.concatenate(self._weights),
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        )
