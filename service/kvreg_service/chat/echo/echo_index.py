"""Indexes the tokens that the model generated, so that an echoed answer gives the same tokens.

A model may generate tokens that differ from the tokenizer's encoding of their text. When the client
sends the answer back, encoding its text again would diverge there, and nothing cached beyond that
position could be reused. This index holds the segments (runs between added tokens) for which the
two differ. A segment is replaced as a whole, by tokens that decode to exactly its text, so a splice
never changes the text and never crosses an added token.

The key of a segment is its tenant, its text *and* all tokens before it: only the conversation in
which it was generated is spliced. Any other conversation that contains the same text is encoded by
the tokenizer, as its cached tokens were.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from kvreg_service.chat.tokens.fair_share_cache import FairShareCache
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core.requests.identity import DEFAULT_TENANT

# Answers that differ from the tokenizer's encoding are rare; this holds thousands of them.
MAX_ECHO_TOKENS = 1 << 20


class EchoIndex:
    """Segments whose generated tokens differ from their encoding, by tenant. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int = MAX_ECHO_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._ids: FairShareCache[tuple[str, bytes], array[int]] = FairShareCache(max_tokens)
        # The number of segments with this text: most lookups end here, without a digest.
        self._num_by_text: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def record(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        """Add the segments of an answer whose tokens differ from the tokenizer's encoding.

        ``prompt_ids`` is the whole prompt: the answer continues its last segment. The end of
        ``output_ids`` ends a segment, as the template closes the message there.
        """
        ids = array("i", prompt_ids)
        start = len(ids)
        while start > 0 and not self._tokenizer.is_added(ids[start - 1]):
            start -= 1
        ids.extend(output_ids)
        for first, last in self._segments(ids, start):
            self._record_segment(ids, first, last, tenant)

    def find(
        self, segment: str, before: array[int], tenant: str = DEFAULT_TENANT
    ) -> array[int] | None:
        """Return the tokens recorded for ``segment`` after the tokens ``before``, or None.

        Effects:
            The array belongs to the index; the caller must not change it.
        """
        if (tenant, segment) not in self._num_by_text:
            return None
        digest = _digest(before)
        with self._lock:
            return self._ids.find(tenant, (segment, digest))

    def _segments(self, ids: array[int], start: int) -> Iterator[tuple[int, int]]:
        for position in range(start, len(ids)):
            if self._tokenizer.is_added(ids[position]):
                yield start, position
                start = position + 1
        yield start, len(ids)

    def _record_segment(self, ids: array[int], first: int, last: int, tenant: str) -> None:
        segment = ids[first:last]
        text = self._tokenizer.decode(segment)
        if not segment or self._tokenizer.encode_segment(text, tenant) == segment:
            return
        key = (text, _digest(ids[:first]))
        with self._lock:
            is_new = self._ids.find(tenant, key) is None
            dropped = self._ids.put(tenant, key, segment, len(segment))
            if dropped is None:
                return
            self._num_by_text[tenant, text] += is_new
            for owner, (other, _) in dropped:
                self._num_by_text[owner, other] -= 1
                if not self._num_by_text[owner, other]:
                    del self._num_by_text[owner, other]


def _digest(ids: array[int]) -> bytes:
    return blake2b(ids.tobytes(), digest_size=16).digest()
