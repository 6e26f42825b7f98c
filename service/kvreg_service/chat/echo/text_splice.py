"""Puts the text that a model wrote in the place of what the template makes of an echoed call.

The template renders each such message twice: as the client sent it, and with a mark as its only
content. Where the two renderings differ in nothing but these places, and what the template wrote
there reads as the very message, the model's own text takes the place of the mark. A template that
refuses, moves or decorates, a mark that occurs twice, a call that reads differently: any doubt
leaves the message as the template has it. So a splice changes the spelling of a message only.

Owns where a spelling may stand. Which messages have one is looked up by the caller, and control
tokens in it have been marked as text by `special_token_escaper`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvreg_service.chat.messages import Message

# Code points that Unicode reserves for use within a program, around the number of the message.
_FENCE = "\ufdd2"
_MARK = re.compile(f"{_FENCE}([0-9]+){_FENCE}")


class TextSplice:
    """Spellings by the index of their message, for one conversation. Stateless."""

    def __init__(self, spellings: Mapping[int, str]) -> None:
        self._spellings = dict(spellings)

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with a mark in place of each content and its calls that are respelled."""
        return [
            _marked(message, i) if i in self._spellings else message
            for i, message in enumerate(messages)
        ]

    def fill(self, text: str) -> str:
        """Put the spellings in the place of the marks of a rendered text."""
        if not self._spellings:
            return text
        return _MARK.sub(lambda mark: self._spellings.get(int(mark[1]), mark[0]), text)

    def confirmed(
        self,
        messages: Sequence[Message],
        render: Callable[[Sequence[Message]], str],
        reads_as: Callable[[str, int], bool],
    ) -> TextSplice:
        """This respelling without the messages for which there is any doubt.

        ``reads_as`` says whether a rendered text has the meaning of the message with this index.
        """
        if not self._spellings:
            return self
        plain, marked = render(messages), render(self.mark(messages))
        places = list(self._places(plain, marked))
        if [i for i, _ in places] != sorted(self._spellings):
            return TextSplice({})
        return TextSplice({i: self._spellings[i] for i, text in places if reads_as(text, i)})

    def _places(self, plain: str, marked: str) -> Iterator[tuple[int, str]]:
        """The marks in their order, each with what the plain rendering has in its place.

        Ends early where the two renderings differ elsewhere.
        """
        # The texts between the marks, and the numbers in the marks, take turns.
        pieces = _MARK.split(marked)
        if not plain.startswith(pieces[0]):
            return
        start = len(pieces[0])
        for k in range(1, len(pieces), 2):
            following = pieces[k + 1]
            is_last = k + 2 == len(pieces)
            end = len(plain) - len(following) if is_last else plain.find(following, start)
            # Next to nothing, where one place ends cannot be told.
            if end < start or not following or not plain.startswith(following, end):
                return
            yield int(pieces[k]), plain[start:end]
            start = end + len(following)


def _marked(message: Message, index: int) -> Message:
    fields = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**fields, "content": f"{_FENCE}{index}{_FENCE}"}
