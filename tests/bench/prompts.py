"""Conversations of a known size in the reference model's domain, each with a unique nonce.

The nonce comes first, so that no run and no round can hit a prefix cached by an earlier one. All
nonces have the same number of tokens.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from answer import Messages

_SENTENCE = "Keep the tone friendly. The notes are updated once a week."
# With the question this makes a prompt of 1,282 tokens.
_NUM_SENTENCES = 96

SHORT_ANSWER_TOKENS = 64
LONG_ANSWER_TOKENS = 192
"""Above the length of the long answer, which stops after 151 tokens."""


def fresh_nonce() -> str:
    """Return six digits."""
    return f"{secrets.randbelow(10**6):06d}"


def long_answer(nonce: str) -> Messages:
    """Return a prompt of about 1,280 tokens whose answer has about 150."""
    return [_notes(nonce), _user("Count from 1 to 60.")]


def unrelated() -> Messages:
    """Return a short request that shares no prefix with others."""
    return [_user("Hello!")]


@dataclass(frozen=True)
class Session:
    """A conversation that a side request interrupts."""

    nonce: str

    @property
    def first(self) -> Messages:
        """The first turn, about 1,280 tokens."""
        return [_notes(self.nonce), _user(f"My locker code is {self.nonce[:4]}.")]

    @property
    def side_request(self) -> Messages:
        """An unrelated request that takes the lane."""
        message = f"User: My locker code is {self.nonce[:4]}."
        return [_user(f"Write a title for this conversation:\n{message}")]

    def with_user_tail(self, answer: str) -> Messages:
        """The next turn: the answer echoed, and a question."""
        question = "What is my locker code?"
        return [*self.with_assistant_tail(answer), _user(question)]

    def with_assistant_tail(self, answer: str) -> Messages:
        """The answer echoed as the last message."""
        return [*self.first, {"role": "assistant", "content": answer}]


def _notes(nonce: str) -> dict[str, str]:
    sentences = " ".join([_SENTENCE] * _NUM_SENTENCES)
    return {"role": "system", "content": f"Project notes {nonce}. {sentences}"}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
