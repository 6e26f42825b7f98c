"""The shape of a generated chat: messages that know the right answer and what was asked.

Owns the data that the generator hands to rendering and scoring. It holds no words of the domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
ChatKind = Literal["session", "side", "zh", "drill", "quiz"]
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


@dataclass(frozen=True)
class Chat:
    """A whole conversation, as it is rendered for training.

    ``is_thinking``: the answers after the last user message carry their reasoning.
    ``preserves_thinking``: the think section is rendered for every answer, not only for those.
    """

    kind: ChatKind
    messages: tuple[Message, ...]
    is_thinking: bool = False
    preserves_thinking: bool = False

    def answer_indices(self, *asks: Ask) -> list[int]:
        """Positions of the assistant messages, of the given kinds only if any is given."""
        return [
            index
            for index, message in enumerate(self.messages)
            if message.role == "assistant" and (not asks or message.ask in asks)
        ]


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
