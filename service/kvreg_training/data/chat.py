"""A generated chat, the input of rendering and scoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvreg_service.reference_model.grammar.messages import Ask, Message

ChatKind = Literal["session", "side", "zh", "drill", "quiz"]


@dataclass(frozen=True)
class Chat:
    """A whole conversation, as it is rendered for training.

    ``is_thinking``: the answers after the last user message have their reasoning.
    ``preserves_thinking``: every answer has a think section, not only those.
    """

    kind: ChatKind
    messages: tuple[Message, ...]
    is_thinking: bool = False
    preserves_thinking: bool = False

    def answer_indices(self, *asks: Ask) -> list[int]:
        """Return the positions of the assistant messages, of these kinds only if any is given."""
        return [
            index
            for index, message in enumerate(self.messages)
            if message.role == "assistant" and (not asks or message.ask in asks)
        ]
