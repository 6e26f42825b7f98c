"""A streaming parser that splits generated text into reasoning and content.

Owns the meaning of ``<think>`` and ``</think>`` in generated text, and which white space around
them belongs to the markup: the newlines around the reasoning and up to two after its end. A
template that adds this markup itself therefore renders an echo to the generated text.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal

from kvreg_service.chat.output.partial_match import partial_suffix_len

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

_MAX_NEWLINES_AFTER_CLOSE = 2

Kind = Literal["reasoning", "content"]


class _Place(Enum):
    START = auto()
    REASONING_START = auto()
    REASONING = auto()
    AFTER_CLOSE = auto()
    CONTENT = auto()


class ReasoningSplitter:
    """Splits one answer. Buffers only text that may still turn out to be markup.

    Reasoning is either opened by the prompt (``starts_in_reasoning``) or by a ``<think>`` at the
    start of the answer; a later ``<think>`` is content.
    """

    def __init__(self, starts_in_reasoning: bool) -> None:
        self._place = _Place.REASONING_START if starts_in_reasoning else _Place.START
        self._held = ""
        self._num_newlines_to_drop = _MAX_NEWLINES_AFTER_CLOSE

    @property
    def is_in_reasoning(self) -> bool:
        """True while the next text is reasoning or its end marker."""
        return self._place in (_Place.REASONING_START, _Place.REASONING)

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """Add the next piece of text and return the parts that are final, in order."""
        self._held += text
        parts: list[tuple[Kind, str]] = []
        before = None
        while self._held and before != (self._place, self._held):
            before = (self._place, self._held)
            part = self._advance()
            if part is not None and part[1]:
                parts.append(part)
        return parts

    def flush(self) -> list[tuple[Kind, str]]:
        """End the answer and return the rest: what was buffered is text."""
        held, self._held = self._held, ""
        match self._place:
            case _Place.REASONING_START | _Place.REASONING:
                held = held.rstrip("\n")
                return [("reasoning", held)] if held else []
            case _:
                return [("content", held)] if held else []

    def _advance(self) -> tuple[Kind, str] | None:
        """Consume as much of the buffered text as its state allows; returns at most one part."""
        match self._place:
            case _Place.START:
                self._start()
            case _Place.REASONING_START:
                self._held = self._held.lstrip("\n")
                if self._held:
                    self._place = _Place.REASONING
            case _Place.REASONING:
                return "reasoning", self._reasoning()
            case _Place.AFTER_CLOSE:
                self._after_close()
            case _Place.CONTENT:
                text, self._held = self._held, ""
                return "content", text
        return None

    def _start(self) -> None:
        answer = self._held.lstrip()
        if answer.startswith(THINK_OPEN):
            self._held = answer.removeprefix(THINK_OPEN)
            self._place = _Place.REASONING_START
        elif not THINK_OPEN.startswith(answer):
            self._place = _Place.CONTENT

    def _reasoning(self) -> str:
        reasoning, close, rest = self._held.partition(THINK_CLOSE)
        if close:
            self._held = rest
            self._place = _Place.AFTER_CLOSE
            return reasoning.rstrip("\n")
        length = len(self._held) - partial_suffix_len(self._held, THINK_CLOSE)
        certain = self._held[:length].rstrip("\n")
        self._held = self._held[len(certain) :]
        return certain

    def _after_close(self) -> None:
        while self._num_newlines_to_drop and self._held.startswith("\n"):
            self._held = self._held[1:]
            self._num_newlines_to_drop -= 1
        if self._held:
            self._place = _Place.CONTENT
