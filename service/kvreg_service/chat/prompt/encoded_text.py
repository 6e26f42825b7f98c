"""Encodes rendered text, reusing the tokens of a text with the same prefix.

Owns the three steps of encoding: split at added tokens, unescape each segment, and take its tokens
from the echo index or else from the tokenizer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.common_prefix import common_prefix_len
from kvreg_service.chat.prompt.special_token_escaper import SpecialTokenEscaper
from kvreg_service.chat.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedText:
    """A rendered text, its tokens, and the position in both after each added token."""

    text: str
    token_ids: array[int]
    char_cuts: list[int]
    token_cuts: list[int]


class TextEncoder:
    """Encodes rendered texts. Its only state is that of the tokenizer and the echo index."""

    def __init__(self, tokenizer: Tokenizer, escaper: SpecialTokenEscaper, echo: EchoIndex) -> None:
        self._tokenizer = tokenizer
        self._escaper = escaper
        self._echo = echo

    def encode(self, text: str, tenant: str, like: EncodedText | None = None) -> EncodedText:
        """Encode ``text`` for a tenant, reusing the tokens of its common prefix with ``like``."""
        ids = array("i")
        char_cuts: list[int] = []
        token_cuts: list[int] = []
        if like is not None:
            # An added token may extend beyond the position where the texts diverge.
            common = common_prefix_len(text, like.text)
            num_cuts = bisect_right(
                like.char_cuts, common - self._tokenizer.max_added_token_characters
            )
            if num_cuts:
                char_cuts = like.char_cuts[:num_cuts]
                token_cuts = like.token_cuts[:num_cuts]
                ids = like.token_ids[: token_cuts[-1]]
        position = char_cuts[-1] if char_cuts else 0
        for segment, added_id in self._tokenizer.split(text, position):
            plain = self._escaper.unescape(segment)
            segment_ids = self._echo.find(plain, ids, tenant)
            if segment_ids is None:
                segment_ids = self._tokenizer.encode_segment(plain, tenant)
            ids.extend(segment_ids)
            position += len(segment)
            if added_id is not None:
                ids.append(added_id)
                position += self._tokenizer.added_token_len(added_id)
                char_cuts.append(position)
                token_cuts.append(len(ids))
        return EncodedText(text, ids, char_cuts, token_cuts)
