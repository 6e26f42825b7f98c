"""The messages of a generated chat, which know the right answer and the kind of request.

Owns their shape. It holds no words of the domain.
"""

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

    An assistant message is right by construction. ``ask`` is the kind of request that it answers,
    ``value`` the string that has to be in a right answer, and ``reasoning`` what a thinking model
    writes before it. Everything but stories is a function of the conversation, so greedy replies
    can be compared exactly.
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
    """An assistant message with what scoring needs to know about it."""
    return Message("assistant", content, ask, value, reasoning)
