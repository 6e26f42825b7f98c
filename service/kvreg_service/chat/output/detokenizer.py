"""Incremental detokenization: whole characters only, and no text after a stop string.

Special tokens have no text. ``reasoning`` and ``tool_calls`` parse the resulting text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from kvreg_service.chat.output.partial_match import partial_suffix_len
from kvreg_service.chat.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class DecodedText:
    """The text that a token completed, and whether a stop string ended the answer."""

    text: str
    is_stopped: bool


class IncrementalDetokenizer:
    """Decodes one answer. Buffers the bytes of a partial character and a possible stop string.

    The stop string that is completed first ends the answer, whatever its tokens are. It is not
    emitted; ``stopped_by`` names it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(text for text in stop if text)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, token_id: int) -> DecodedText:
        """Add the next token. After a stop string, tokens have no text."""
        if self.stopped_by is not None or self._tokenizer.is_special(token_id):
            return DecodedText("", self.stopped_by is not None)
        return self._take(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, including those of tokens without text in an answer."""
        return self._tokenizer.token_bytes(token_id)

    def flush(self) -> str:
        """End the answer and return the buffered text. A partial character becomes U+FFFD."""
        if self.stopped_by is not None:
            return ""
        step = self._take(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return step.text + held

    def _take(self, text: str) -> DecodedText:
        if not self._stop:
            return DecodedText(text, False)
        text = self._held + text
        found = [(text.find(stop) + len(stop), stop) for stop in self._stop if stop in text]
        if found:
            end, stop = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            self.stopped_by = stop
            self._held = ""
            return DecodedText(text[: end - len(stop)], True)
        num_held = max(partial_suffix_len(text, stop) for stop in self._stop)
        self._held = text[len(text) - num_held :]
        return DecodedText(text[: len(text) - num_held], False)
