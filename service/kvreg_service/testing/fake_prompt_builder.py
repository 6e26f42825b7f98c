"""A prompt builder over bytes, which needs neither a vocabulary nor a template."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.generated_texts import GeneratedAnswer
from kvreg_service.chat.messages import normalize_messages
from kvreg_service.chat.prompt.boundary import Boundary
from kvreg_service.chat.prompt.builder import ChatPrompt
from kvreg_service.core.errors import KvregError
from kvreg_service.core.labels import Tail


class ByteTokenizer:
    """A vocabulary of 256 bytes."""

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the bytes; a broken character becomes U+FFFD."""
        return bytes(token_ids).decode(errors="replace")


class FakePromptBuilder:
    """Renders messages as ``role: text`` lines of bytes, and records its arguments."""

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []
        self.tenants: list[str] = []
        self.remembered: list[tuple[ChatPrompt, GeneratedAnswer]] = []
        self.error: KvregError | None = None
        self._tokenizer = ByteTokenizer()

    def build(self, conversation: Conversation, tenant: str) -> ChatPrompt:
        """Build a prompt without boundaries."""
        self.conversations.append(conversation)
        self.tenants.append(tenant)
        messages = normalize_messages(conversation.messages)
        if self.error is not None:
            raise self.error
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return ChatPrompt(
            token_ids=array("i", self._tokenizer.encode(text)),
            boundary=Boundary(turn=None, round=None),
            tail=Tail(str(messages[-1]["role"])),
            starts_in_reasoning=conversation.enable_thinking is True,
            tenant=tenant,
        )

    def count(self, conversation: Conversation, tenant: str) -> int:
        """Count the bytes of the prompt."""
        return len(self.build(conversation, tenant).token_ids)

    def remember(self, prompt: ChatPrompt, answer: GeneratedAnswer) -> None:
        """Record the answer."""
        self.remembered.append((prompt, answer))
