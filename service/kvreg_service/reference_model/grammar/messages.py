"""The messages of a generated chat, with the data that scoring needs. It has no sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
Ask = Literal[
    "tell",
    "recall",
    "notes",
    "unknown",
    "change",
    "arith",
    "repeat",
    "count",
    "list",
    "small",
    "story",
    "title",
    "review",
    "summary",
    "zh_tell",
    "zh_recall",
    "zh_arith",
]


@dataclass(frozen=True)
class Message:
    """One message.

    An assistant message is correct by construction. ``ask`` is the kind of request that it answers,
    ``value`` the string that a correct answer contains, and ``reasoning`` the text of a thinking
    model before it. Except for stories, an answer is a function of the conversation, so greedy
    answers can be compared exactly.
    """

    role: Role
    content: str
    ask: Ask | None = None
    value: str | None = None
    reasoning: str | None = None


Exchange = list[Message]
"""One user message and its answer."""


def system(content: str) -> Message:
    """A system message."""
    return Message("system", content)


def user(content: str) -> Message:
    """A user message."""
    return Message("user", content)


def answer(content: str, ask: Ask, value: str, reasoning: str | None = None) -> Message:
    """An assistant message with the data for scoring."""
    return Message("assistant", content, ask, value, reasoning)
