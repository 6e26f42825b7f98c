"""Indexes the generated text of tool calls, so that an echoed call gives the same prompt.

A client sends a call back as a name and JSON arguments, and the template renders it again with its
own white space, key order and number format, which may differ from the generated text. This index
holds the generated text. Its key is the tenant, the content of the message *and* all messages
before it: only the conversation in which the text was generated gets it back. `text_splice` decides
whether it can replace the rendered message.
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

# Thousands of calls, including some that write whole files.
MAX_INDEXED_CHARACTERS = 1 << 24

_START = b"conversation"


@dataclass(frozen=True)
class GeneratedAnswer:
    """An answer as the client received it, and its generated text without the reasoning."""

    content: str
    calls: Sequence[ToolCall]
    text: str

    def as_message(self) -> Message:
        """Return the message that an exact echo is normalized to."""
        calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in self.calls]
        return {"role": "assistant", "content": self.content, "tool_calls": calls}


class GeneratedTextIndex:
    """Generated texts by tenant and conversation digest. Thread-safe."""

    def __init__(self, *, max_characters: int = MAX_INDEXED_CHARACTERS) -> None:
        self._texts: FairShareCache[bytes, str] = FairShareCache(max_characters)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    def record(self, tenant: str, history: bytes, answer: GeneratedAnswer) -> None:
        """Add an answer to the conversation with this digest. A later text replaces it."""
        key = digest_after(history, answer.as_message())
        with self._lock:
            self._texts.put(tenant, key, answer.text, len(answer.text))

    def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the text of the message with which a conversation reaches ``digest``, or None."""
        with self._lock:
            return self._texts.find(tenant, digest)


def digests(messages: Iterable[Message]) -> list[bytes]:
    """Return the digest of a conversation after each message, chained by ``digest_after``."""
    chain: list[bytes] = []
    for message in messages:
        chain.append(digest_after(chain[-1] if chain else _START, message))
    return chain


def digest_after(history: bytes, message: Message) -> bytes:
    """Return the digest of a conversation with one more normalized message.

    It ignores what clients change without changing the content: ids, key order and number format.
    It also ignores reasoning, which many clients drop.
    """
    return blake2b(history + canonical(message), digest_size=16).digest()


def canonical(message: Message) -> bytes:
    """Return the canonical form of a normalized message, without its reasoning."""
    calls = message.get("tool_calls")
    content = [
        message["role"],
        message["content"],
        [_canonical_value(call["function"]) for call in calls] if isinstance(calls, list) else [],
    ]
    return json.dumps(content, sort_keys=True).encode()


def _canonical_value(value: object) -> object:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {key: _canonical_value(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_canonical_value(entry) for entry in value]
        case _:
            return value
