"""Text to token ids and back, with a cache that makes re-encoding a grown conversation cheap.

Owns the vocabulary of one model and the cache of encoded segments. A *segment* is a run of text
between two added tokens (``<|im_start|>``, ``<think>`` ...). Segments are encoded independently, so
encoding them one by one equals encoding the whole text. Cached segments are not shared by tenants:
the time of a request must not reveal what other tenants have sent. It does not know templates or
messages.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import tokenizers  # type: ignore[import-untyped]

from kvreg_service.chat.tokens.fair_share_cache import FairShareCache
from kvreg_service.core.errors import CheckpointError
from kvreg_service.core.requests.identity import DEFAULT_TENANT

# About twenty conversations of 200,000 tokens; the ids take about as many bytes as the text.
MAX_CACHED_CHARACTERS = 1 << 24

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A byte-level tokenizer as its ``tokenizer.json`` defines it. Thread-safe."""

    def __init__(
        self,
        definition: Mapping[str, object],
        *,
        eos_tokens: Iterable[int | str] = (),
        max_cached_characters: int = MAX_CACHED_CHARACTERS,
    ) -> None:
        """Build from the content of a ``tokenizer.json``.

        Raises:
            CheckpointError: The definition is malformed, its decoder is not byte-level, or its
                added tokens change the tokens of the text around them, so that segments are not
                independent.
        """
        definition = {**definition, "post_processor": None, "truncation": None, "padding": None}
        whole = _build(definition)
        added = whole.get_added_tokens_decoder()
        # Encodes segments: without the added tokens, their text is ordinary text.
        self._plain = _build({**definition, "added_tokens": []})
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        self._added = frozenset(added)
        self._added_lens = {token_id: len(token.content) for token_id, token in added.items()}
        self._special = frozenset(i for i, token in added.items() if token.special)
        self._bytes = _token_bytes(whole)
        self._longest_token_bytes = max(map(len, self._bytes.values()), default=1) or 1
        self.special_tokens = tuple(added[i].content for i in sorted(self._special))
        self.added_tokens = tuple(added[i].content for i in sorted(added))
        self.max_added_token_characters = max(map(len, self.added_tokens), default=0)
        self._pattern = _alternatives(self.added_tokens)
        self.vocab_size = whole.get_vocab_size(with_added_tokens=True)
        self.digest = sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
        self.eos_token_ids = frozenset(self._resolve_eos(eos_tokens))
        self._segments: FairShareCache[str, array[int]] = FairShareCache(max_cached_characters)
        self._lock = threading.Lock()
        self._require_independent_segments(whole)

    @classmethod
    def from_path(cls, path: Path | str) -> Tokenizer:
        """Read ``tokenizer.json`` and the end tokens named by the configurations beside it.

        Raises:
            CheckpointError: The file is missing, unreadable or of an unsupported kind.
        """
        folder = Path(path)
        definition = _read_json(folder / "tokenizer.json")
        if definition is None:
            raise CheckpointError(f"there is no tokenizer.json in {folder}", path=str(folder))
        return cls(definition, eos_tokens=_eos_tokens(folder))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``; the text of an added token becomes that token.

        A lone surrogate, which UTF-8 cannot represent, is encoded as U+FFFD.
        """
        ids: list[int] = []
        for segment, added_id in self.split(text):
            ids.extend(self.encode_segment(segment))
            if added_id is not None:
                ids.append(added_id)
        return ids

    def encode_segment(self, segment: str, tenant: str = DEFAULT_TENANT) -> array[int]:
        """Return the token ids of ``segment`` as ordinary text, even of the text of added tokens.

        Effects:
            The array belongs to the cache; the caller must not change it.
        """
        if not segment:
            return array("i")
        with self._lock:
            ids = self._segments.find(tenant, segment)
        if ids is None:
            text = segment
            if not segment.isascii():
                text = _LONE_SURROGATE.sub("\ufffd", segment)
            # Encoding a batch releases the GIL; encoding a single text does not.
            (encoding,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
            ids = array("i", encoding.ids)
            with self._lock:
                self._segments.put(tenant, segment, ids, len(segment))
        return ids

    def split(self, text: str, start: int = 0) -> Iterator[tuple[str, int | None]]:
        """Split ``text[start:]`` at added tokens: yields a segment and the token after it.

        The last pair has no token. Where several added tokens match, the longest one is used.
        """
        position = start
        for match in self._pattern.finditer(text, start):
            yield text[position : match.start()], self._added_ids[match.group()]
            position = match.end()
        yield text[position:], None

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of ``token_ids`` including added tokens; invalid UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for a row that pads the vocabulary."""
        return self._bytes.get(token_id, b"")

    def is_added(self, token_id: int) -> bool:
        """Return whether the token is an added one, such as ``<think>``."""
        return token_id in self._added

    def is_special(self, token_id: int) -> bool:
        """Return whether the token is a special one, such as ``<|im_end|>``, which has no text."""
        return token_id in self._special

    def least_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens of ``text``, without encoding it."""
        return len(text) // self._longest_token_bytes

    def added_token_len(self, added_id: int) -> int:
        """Return the length of an added token in characters."""
        return self._added_lens[added_id]

    def _resolve_eos(self, tokens: Iterable[int | str]) -> Iterator[int]:
        for token in tokens:
            token_id = self._added_ids.get(token) if isinstance(token, str) else token
            if token_id is not None:
                yield token_id

    def _require_independent_segments(self, whole: tokenizers.Tokenizer) -> None:
        for token in self.added_tokens:
            probe = f"a {token} b{token}c\n{token}\n{token}"
            if self.encode(probe) != whole.encode(probe, add_special_tokens=False).ids:
                raise CheckpointError(
                    f"the added token {token!r} changes the tokens of the text beside it, "
                    "which this engine does not support",
                    token=token,
                )


def _build(definition: Mapping[str, object]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(definition))
    # The library reports every malformed definition as a bare Exception.
    except Exception as err:
        raise CheckpointError(f"the tokenizer's definition is malformed: {err}") from err


def _alternatives(tokens: Iterable[str]) -> re.Pattern[str]:
    # An alternation takes the first match, so the longest token must come first.
    ordered = sorted(tokens, key=len, reverse=True)
    # An empty alternation would match everywhere; this never matches.
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _token_bytes(whole: tokenizers.Tokenizer) -> dict[int, bytes]:
    if not isinstance(whole.decoder, tokenizers.decoders.ByteLevel):
        kind = type(whole.decoder).__name__
        raise CheckpointError(f"the tokenizer's decoder is {kind}; only ByteLevel is supported")
    byte_of = _byte_of_character()
    table: dict[int, bytes] = {}
    for token, token_id in whole.get_vocab(with_added_tokens=False).items():
        # A vocabulary may list control tokens besides byte-level ones; their text is their name.
        if all(character in byte_of for character in token):
            table[token_id] = bytes(byte_of[character] for character in token)
        else:
            table[token_id] = token.encode()
    for token_id, added in whole.get_added_tokens_decoder().items():
        table[token_id] = added.content.encode()
    return table


def _byte_of_character() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary.

    Source:
        GPT-2's ``bytes_to_unicode``: printable bytes map to themselves, the others to the
        characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(0x100) if byte not in table.values())
    return table | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _eos_tokens(folder: Path) -> Iterator[int | str]:
    """Yield the ids or texts of the end tokens that the configurations of the model name."""
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        content = _read_json(folder / name) or {}
        nested = content.get("text_config")
        for source in (content, nested if isinstance(nested, dict) else {}):
            for key in ("eos_token_id", "eos_token"):
                value = source.get(key)
                for token in value if isinstance(value, list) else [value]:
                    if isinstance(token, dict):
                        token = token.get("content")
                    if isinstance(token, int | str):
                        yield token


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as err:
        raise CheckpointError(f"{path} cannot be read: {err}", path=str(path)) from err
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object", path=str(path))
    return content
