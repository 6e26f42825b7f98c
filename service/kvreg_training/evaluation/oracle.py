"""transformers as the oracle of an exported checkpoint: templates, logits, greedy answers, caches.

Owns all calls of transformers in this package, which needs the ``dev`` extra. The oracle is slow,
and independent of the code that trains and serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

from kvreg_training.data.chat import Chat
from kvreg_training.shape import END_OF_MESSAGE_ID

ApiMessage = dict[str, str]
Cache = DynamicCache
"""Layers with ``keys`` and ``values``, or with ``conv_states`` and ``recurrent_states``."""

_MAX_ANSWER_TOKENS = 120


def api_messages(chat: Chat, end: int | None = None) -> list[ApiMessage]:
    """Return the messages before position ``end``, as a client sends them."""
    return [{"role": message.role, "content": message.content} for message in chat.messages[:end]]


@dataclass(frozen=True)
class Answer:
    """A greedy answer without its end token."""

    token_ids: list[int]
    text: str


class Oracle:
    """A checkpoint in transformers."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        # Its notes on missing fast kernels and its progress bars would disturb the report.
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def render(self, messages: Sequence[ApiMessage], **variables: object) -> str:
        """Renders with the chat template."""
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **variables)
        return text

    def encode(self, text: str) -> list[int]:
        """Returns token ids, without adding any."""
        token_ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the exact text of these tokens."""
        text: str = self.tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return text

    def prompt(self, messages: Sequence[ApiMessage], **variables: object) -> list[int]:
        """Returns the prompt tokens of the next answer."""
        return self.encode(self.render(messages, add_generation_prompt=True, **variables))

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Returns the logits of all positions, in one pass without a cache, [T, V]."""
        with torch.no_grad():
            output = self.model(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
        logits: Tensor = output.logits[0]
        return logits

    def prefill(self, token_ids: Sequence[int]) -> Cache:
        """Returns the cache after these tokens, computed in one pass."""
        with torch.no_grad():
            output = self.model(input_ids=torch.tensor([list(token_ids)]), use_cache=True)
        cache: Cache = output.past_key_values
        return cache

    def feed(self, token_ids: Sequence[int], cache: Cache | None) -> tuple[Tensor, Cache]:
        """Continues ``cache`` and returns the logits of each of these tokens, [T, V].

        After a cache the tokens are fed one by one: transformers 5.5.4 starts several tokens at
        once from a zero recurrent state, whatever the cache holds.

        Effects:
            ``cache`` is advanced in place.
        """
        steps = [list(token_ids)] if cache is None else [[token_id] for token_id in token_ids]
        logits = []
        for step in steps:
            with torch.no_grad():
                output = self.model(
                    input_ids=torch.tensor([step]), past_key_values=cache, use_cache=True
                )
            cache = output.past_key_values
            logits.append(output.logits[0])
        assert cache is not None, "at least one token is fed"
        return torch.cat(logits), cache

    def answer(self, token_ids: Sequence[int], cache: Cache | None = None) -> Answer:
        """Returns the greedy answer to these tokens, after ``cache`` if given.

        Effects:
            ``cache`` is advanced in place.
        """
        logits, cache = self.feed(token_ids, cache)
        return self.answer_after(logits, cache)

    def answer_after(self, logits: Tensor, cache: Cache) -> Answer:
        """Returns the greedy answer, given the logits of the last token and the cache after it.

        Effects:
            ``cache`` is advanced in place.
        """
        answered: list[int] = []
        while len(answered) < _MAX_ANSWER_TOKENS:
            token_id = int(logits[-1].argmax())
            if token_id == END_OF_MESSAGE_ID:
                break
            answered.append(token_id)
            logits, cache = self.feed([token_id], cache)
        return Answer(answered, self.decode(answered))
