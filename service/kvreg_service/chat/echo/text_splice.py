"""Splices generated text into a rendered prompt, in place of the rendering of an echoed tool call.

The conversation is rendered twice: as the client sent it, and with a placeholder as the only
content of each such message. If the two renderings differ only at the placeholders, and the text
rendered there parses to the same message, the generated text takes its place. In any other case
the message stays as the template renders it: the template rejects, moves or decorates the
placeholder, a placeholder occurs twice, or the text parses to something else. So a splice changes
only the format of a message, never its content.

Owns the verification. The caller looks up the generated texts, which are already escaped by
`special_token_escaper`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvreg_service.chat.messages import Message

# Unicode noncharacters, reserved for internal use, around the index of the message.
_FENCE = "\ufdd2"
_MARK = re.compile(f"{_FENCE}([0-9]+){_FENCE}")


class TextSplice:
    """Generated texts by message index, for one conversation. Immutable."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = dict(texts)

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with a placeholder in place of each content to be replaced."""
        return [
            _marked(message, i) if i in self._texts else message
            for i, message in enumerate(messages)
        ]

    def fill(self, text: str) -> str:
        """Replace the placeholders of a rendered text by the generated texts."""
        if not self._texts:
            return text
        return _MARK.sub(lambda mark: self._texts.get(int(mark[1]), mark[0]), text)

    def verified(
        self,
        messages: Sequence[Message],
        render: Callable[[Sequence[Message]], str],
        parses_to: Callable[[str, int], bool],
    ) -> TextSplice:
        """Return a splice of those messages whose replacement could be verified.

        ``parses_to`` says whether a rendered text parses to the message with this index.
        """
        if not self._texts:
            return self
        plain, marked = render(messages), render(self.mark(messages))
        places = list(self._places(plain, marked))
        if [i for i, _ in places] != sorted(self._texts):
            return TextSplice({})
        return TextSplice({i: self._texts[i] for i, text in places if parses_to(text, i)})

    def _places(self, plain: str, marked: str) -> Iterator[tuple[int, str]]:
        """Yield the index of each placeholder with the text of the plain rendering at its place.

        Stops where the two renderings differ elsewhere.
        """
        # Texts between placeholders alternate with the indices in the placeholders.
        pieces = _MARK.split(marked)
        if not plain.startswith(pieces[0]):
            return
        start = len(pieces[0])
        for k in range(1, len(pieces), 2):
            following = pieces[k + 1]
            is_last = k + 2 == len(pieces)
            end = len(plain) - len(following) if is_last else plain.find(following, start)
            # Without text after a placeholder, the end of its text is ambiguous.
            if end < start or not following or not plain.startswith(following, end):
                return
            yield int(pieces[k]), plain[start:end]
            start = end + len(following)


def _marked(message: Message, index: int) -> Message:
    fields = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**fields, "content": f"{_FENCE}{index}{_FENCE}"}
