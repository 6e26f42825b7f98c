"""Escapes special tokens in the text of clients, so that it cannot inject control tokens.

A template renders messages and its own special tokens into one text, so a message that contains
``<|im_end|>`` would end its turn and could forge another one. Before rendering, an escape character
is inserted into each special token in a client's text. The tokenizer does not recognize an escaped
token, and the escape is removed before the segment around it is encoded. The model reads the text
that the client sent, as ordinary tokens, and the same tokens in every turn.

* Special tokens (``<|im_start|>``, ``<|endoftext|>`` ...) are escaped in everything a client sends.
* The other added tokens (``<think>``, ``<tool_call>`` ...) are escaped in tool results, which may
  contain untrusted text. Elsewhere they stay tokens: templates look for them in assistant messages,
  and clients write them into system prompts to explain a format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from kvreg_service.chat.messages import Message

_Json = TypeVar("_Json")

# A Unicode noncharacter, reserved for internal use; one in a client's text is doubled.
_MARK = "\ufdd0"
_MARKED = re.compile(f"{_MARK}({_MARK}?)")


class SpecialTokenEscaper:
    """Escapes and unescapes texts for one vocabulary. Stateless."""

    def __init__(self, *, special_tokens: Iterable[str], added_tokens: Iterable[str]) -> None:
        self._special = _finder(special_tokens)
        self._added = _finder(added_tokens)

    def escape_messages(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages with every token escaped that must stay text."""
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
        """Return a JSON-like value, such as tool definitions, with its special tokens escaped."""
        return cast(_Json, _escape(value, self._special))

    def unescape(self, text: str) -> str:
        """Return the text as the client sent it."""
        return _MARKED.sub(r"\1", text) if _MARK in text else text


def _finder(tokens: Iterable[str]) -> re.Pattern[str] | None:
    # There is no position inside a token of one character; no special token is that short.
    ordered = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


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
