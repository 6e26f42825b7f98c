"""Remembers how a model spelled its tool calls, so that an echoed call gives the same text.

A client sends a call back as a name and JSON arguments, and the template writes it anew: in its
own white space, key order and numbers, which need not be those of the model. This index holds the
text that the model wrote, by its tenant, by what it means *and* by all that was said before: only
the conversation in which it was written gets it back. What is put in its place, and whether it may
be, is decided by `text_splice`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from kvreg_service.chat.messages import Message
from kvreg_service.chat.tokens.fair_share_cache import FairShareCache
from kvreg_service.chat.tool_calls.tool_call import ToolCall

# Thousands of calls, among them such as write whole files.
MAX_INDEXED_CHARACTERS = 1 << 24

_START = b"conversation"


@dataclass(frozen=True)
class GeneratedAnswer:
    """An answer as its client got it, and the text, without reasoning, that the model wrote."""

    content: str
    calls: Sequence[ToolCall]
    text: str

    def as_message(self) -> Message:
        """The message that an exact echo becomes."""
        calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in self.calls]
        return {"role": "assistant", "content": self.content, "tool_calls": calls}


class GeneratedTextIndex:
    """Answers of several tenants by digest. Safe to share by threads."""

    def __init__(self, *, max_characters: int = MAX_INDEXED_CHARACTERS) -> None:
        self._texts: FairShareCache[bytes, str] = FairShareCache(max_characters)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    def record(self, tenant: str, history: bytes, answer: GeneratedAnswer) -> None:
        """Note an answer to the conversation with this digest. A later spelling replaces it."""
        key = digest_after(history, answer.as_message())
        with self._lock:
            self._texts.put(tenant, key, answer.text, len(answer.text))

    def find(self, tenant: str, digest: bytes) -> str | None:
        """The spelling of the message with which a conversation reaches this digest, or None."""
        with self._lock:
            return self._texts.find(tenant, digest)


def digests(messages: Iterable[Message]) -> list[bytes]:
    """The digest of the conversation after each of its messages, as ``digest_after`` chains it."""
    chain: list[bytes] = []
    for message in messages:
        chain.append(digest_after(chain[-1] if chain else _START, message))
    return chain


def digest_after(history: bytes, message: Message) -> bytes:
    """The digest of a conversation that is continued by one normalised message.

    What a client may change without changing what is said has no part in it: ids, the order of
    keys, the spelling of numbers; nor has reasoning, which many clients drop.
    """
    return blake2b(history + meaning(message), digest_size=16).digest()


def meaning(message: Message) -> bytes:
    """What a normalised message says, apart from its reasoning; equal for equal messages."""
    calls = message.get("tool_calls")
    said = [
        message["role"],
        message["content"],
        [_canonical(call["function"]) for call in calls] if isinstance(calls, list) else [],
    ]
    return json.dumps(said, sort_keys=True).encode()


def _canonical(value: object) -> object:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {key: _canonical(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_canonical(entry) for entry in value]
        case _:
            return value
