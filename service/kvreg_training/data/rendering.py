"""A chat as text, with a loss weight for every character.

Owns the weights. The text equals the rendering of ``chat_template.jinja`` for the same messages, so
that prompts match the training data.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.reference_model.grammar.messages import Ask, Message
from kvreg_training.data.chat import Chat

END_OF_MESSAGE = "<|im_end|>"

ANSWER_WEIGHT = 1.0
# The template adds the markers of an empty think section.
EMPTY_THINK_WEIGHT = 0.0
MARKER_WEIGHT = 0.02
USER_WEIGHT = 0.06
SYSTEM_WEIGHT = 0.03
END_OF_INPUT_WEIGHT = 0.06

VALUE_WEIGHTS: dict[Ask, float] = {
    "arith": 4.0,
    "recall": 2.0,
    "notes": 2.0,
    "unknown": 2.0,
    "review": 2.0,
}
"""Higher weights for the characters of the value in an answer."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a text and the loss weight of their tokens."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class RenderedChat:
    """The text and its spans, which cover it without gaps.

    ``answers`` are the spans of the assistant's content with its end marker, in order.
    """

    text: str
    spans: tuple[Span, ...]
    answers: tuple[Span, ...]


def render(chat: Chat, *, boosts_values: bool = False) -> RenderedChat:
    """Render a chat like the template.

    ``boosts_values``: give the value in an answer its weight in VALUE_WEIGHTS.
    """
    writer = _Writer()
    last_user = max(
        (index for index, message in enumerate(chat.messages) if message.role == "user"),
        default=-1,
    )
    for index, message in enumerate(chat.messages):
        writer.write(f"<|im_start|>{message.role}\n", MARKER_WEIGHT)
        if message.role == "assistant":
            if index > last_user or chat.preserves_thinking:
                _write_think_section(writer, message, is_thinking=chat.is_thinking)
            start = writer.length
            _write_answer(writer, message, boosts_values=boosts_values)
            writer.answers.append(Span(start, writer.length, ANSWER_WEIGHT))
            writer.write("\n", MARKER_WEIGHT)
        else:
            weight = USER_WEIGHT if message.role == "user" else SYSTEM_WEIGHT
            writer.write(message.content, weight)
            writer.write(f"{END_OF_MESSAGE}\n", END_OF_INPUT_WEIGHT)
    return writer.rendered()


class _Writer:
    """Collects text and spans."""

    def __init__(self) -> None:
        self.length = 0
        self.answers: list[Span] = []
        self._parts: list[str] = []
        self._spans: list[Span] = []

    def write(self, text: str, weight: float) -> None:
        if text:
            self._spans.append(Span(self.length, self.length + len(text), weight))
            self._parts.append(text)
            self.length += len(text)

    def rendered(self) -> RenderedChat:
        return RenderedChat("".join(self._parts), tuple(self._spans), tuple(self.answers))


def _write_think_section(writer: _Writer, message: Message, *, is_thinking: bool) -> None:
    writer.write("<think>\n", EMPTY_THINK_WEIGHT)
    if is_thinking and message.reasoning:
        writer.write(f"{message.reasoning}\n</think>\n\n", ANSWER_WEIGHT)
    else:
        writer.write("\n</think>\n\n", EMPTY_THINK_WEIGHT)


def _write_answer(writer: _Writer, message: Message, *, boosts_values: bool) -> None:
    text = message.content + END_OF_MESSAGE
    weight = VALUE_WEIGHTS.get(message.ask) if boosts_values and message.ask else None
    if weight is None or not message.value or message.value not in text:
        writer.write(text, ANSWER_WEIGHT)
        return
    start = text.rindex(message.value)
    end = start + len(message.value)
    # A token of this vocabulary begins with the space before the word.
    if start > 0 and text[start - 1] == " ":
        start -= 1
    writer.write(text[:start], ANSWER_WEIGHT)
    writer.write(text[start:end], weight)
    writer.write(text[end:], ANSWER_WEIGHT)
