"""Keeps the text of clients from becoming control tokens.

A template renders messages and its own control tokens into one text, so a message that spells
out ``<|im_end|>`` would end its own turn and could open a forged one. Each control token that a
client's text spells out gets a mark before rendering; a marked token is not recognised as one,
and the mark is removed again before the text around it is encoded. What the model reads is the
text that the client sent, as ordinary tokens, and the same in every turn.

* Special tokens (``<|im_start|>``, ``<|endoftext|>`` ...) are text in everything a client sends.
* The other added tokens (``<think>``, ``<tool_call>`` ...) are text in tool results, which is
  where foreign text enters a conversation. Elsewhere they stay tokens: templates look for them in
  assistant messages, and clients write them into system prompts to explain a format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from kvreg_service.chat.messages import Message

_Json = TypeVar("_Json")

# A code point that Unicode reserves for use within a program; a client's own one is doubled.
_MARK = "\ufdd0"
_MARKED = re.compile(f"{_MARK}({_MARK}?)")


class SpecialTokenEscaper:
    """Marks what a client's text spells out, for one vocabulary. Stateless."""

    def __init__(self, *, special_tokens: Iterable[str], added_tokens: Iterable[str]) -> None:
        self._special = _finder(special_tokens)
        self._added = _finder(added_tokens)

    def escape_messages(self, messages: Iterable[Message]) -> list[Message]:
        """The messages with a mark in each token that has to stay text."""
        return [
            {
                key: _escape(value, self._added)
                if message["role"] == "tool" and key == "content"
                else _escape(value, self._special)
                for key, value in message.items()
            }
            for message in messages
        ]

    def escape(self, value: _Json) -> _Json:
        """A JSON-like value, such as tool definitions, with each special token marked."""
        return cast(_Json, _escape(value, self._special))

    def unescape(self, text: str) -> str:
        """Remove the marks: the text as the client wrote it."""
        return _MARKED.sub(r"\1", text) if _MARK in text else text


def _finder(tokens: Iterable[str]) -> re.Pattern[str] | None:
    # A token of one character cannot be marked inside; no control token is that short.
    spellings = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, spellings))) if spellings else None


def _escape(value: object, finder: re.Pattern[str] | None) -> object:
    match value:
        case str():
            text = value.replace(_MARK, _MARK + _MARK) if _MARK in value else value
            return text if finder is None else finder.sub(_mark, text)
        case Mapping():
            return {_escape(k, finder): _escape(v, finder) for k, v in value.items()}
        case list() | tuple():
            return [_escape(entry, finder) for entry in value]
        case _:
            return value


def _mark(match: re.Match[str]) -> str:
    token = match.group()
    return token[0] + _MARK + token[1:]
