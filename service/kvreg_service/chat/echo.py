"""Remembers how a model spelled its answers, so that an echoed answer gives the same tokens.

A model may produce tokens that are not the tokenizer's own choice for their text. When the client
sends the answer back, encoding its text again would differ in the middle, and everything kept
from there on would be useless. This index holds the segments (runs between added tokens) for
which that happened. A segment is replaced as a whole and by tokens that decode to exactly its
text, so a splice never changes the text and never crosses an added token.

A segment is known by its text *and* all tokens before it: only the conversation in which it was
generated is spliced. Another conversation that happens to contain the same text keeps the
tokenizer's choice, which is what its own kept tokens were made from.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from kvreg_service.chat.tokenizer import Tokenizer

# Answers that differ from the tokenizer's choice are rare; this holds thousands of them.
MAX_ECHO_TOKENS = 1 << 20


class EchoIndex:
    """Segments with unusual tokens, least recently used first out. Safe to share by threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int = MAX_ECHO_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._ids: OrderedDict[tuple[str, bytes], array[int]] = OrderedDict()
        # How many entries have this text: nearly every look-up ends here, without a digest.
        self._num_by_text: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def record(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Note the segments of an answer whose tokens are not the tokenizer's choice.

        ``prompt_ids`` is the whole prompt: the answer continues its last segment. The end of
        ``output_ids`` ends a segment, as the template closes the message there.
        """
        ids = array("i", prompt_ids)
        start = len(ids)
        while start > 0 and not self._tokenizer.is_added(ids[start - 1]):
            start -= 1
        ids.extend(output_ids)
        for first, last in self._segments(ids, start):
            self._record_segment(ids, first, last)

    def find(self, segment: str, before: array[int]) -> array[int] | None:
        """The recorded tokens of ``segment`` behind the tokens ``before``, or None.

        Effects: the caller must not change the array.
        """
        if segment not in self._num_by_text:
            return None
        key = (segment, _digest(before))
        with self._lock:
            ids = self._ids.get(key)
            if ids is not None:
                self._ids.move_to_end(key)
            return ids

    def _segments(self, ids: array[int], start: int) -> Iterator[tuple[int, int]]:
        for position in range(start, len(ids)):
            if self._tokenizer.is_added(ids[position]):
                yield start, position
                start = position + 1
        yield start, len(ids)

    def _record_segment(self, ids: array[int], first: int, last: int) -> None:
        segment = ids[first:last]
        text = self._tokenizer.decode(segment)
        if not 0 < len(segment) <= self._max_tokens:
            return
        if self._tokenizer.encode_segment(text) == segment:
            return
        key = (text, _digest(ids[:first]))
        with self._lock:
            self._forget(key)
            self._ids[key] = segment
            self._num_tokens += len(segment)
            self._num_by_text[text] = self._num_by_text.get(text, 0) + 1
            while self._num_tokens > self._max_tokens:
                self._forget(next(iter(self._ids)))

    def _forget(self, key: tuple[str, bytes]) -> None:
        ids = self._ids.pop(key, None)
        if ids is None:
            return
        self._num_tokens -= len(ids)
        self._num_by_text[key[0]] -= 1
        if not self._num_by_text[key[0]]:
            del self._num_by_text[key[0]]


def _digest(ids: array[int]) -> bytes:
    return blake2b(ids.tobytes(), digest_size=16).digest()
