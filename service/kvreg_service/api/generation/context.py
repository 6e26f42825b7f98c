"""What the routes of both APIs share: the engine, the prompt builder and the served model.

Owns the thread in which prompts are built. Built once by ``create_app``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvreg_service.api.body.served_model import ServedModel
from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.errors import InvalidRequest
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.engine.interface.protocol import EngineProtocol

if TYPE_CHECKING:
    from kvreg_service.chat.echo.generated_texts import GeneratedAnswer
    from kvreg_service.chat.prompt.builder import ChatPrompt


# Shorter than the idle timeouts of common proxies and clients.
KEEP_ALIVE_S = 10.0


class PromptBuilderProtocol(Protocol):
    """Renders and tokenises conversations."""

    def build(self, conversation: Conversation, tenant: str) -> ChatPrompt:
        """Build the prompt. Called from one thread at a time, never in the event loop.

        Remembered answers are used only for the ``tenant`` that received them.

        Raises:
            InvalidRequest: The chat template cannot render this conversation.
        """
        ...

    def count(self, conversation: Conversation, tenant: str) -> int:
        """Return the number of tokens that ``build`` returns. Same threads and errors."""
        ...

    def remember(self, prompt: ChatPrompt, answer: GeneratedAnswer) -> None:
        """Store the text of a generated answer, which its client may echo. From any thread."""
        ...


def _new_prompt_thread() -> ThreadPoolExecutor:
    # One thread: the builder's caches need no locks, and the engine keeps its cores.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvreg-prompt")


@dataclass(frozen=True)
class ApiContext:
    """Everything that the routes of both APIs use.

    ``vocab_size`` limits the token ids of ``logit_bias``; None if unknown. A stream sends an event
    at least every ``keep_alive_s`` seconds.
    """

    engine: EngineProtocol
    prompt_builder: PromptBuilderProtocol
    model: ServedModel
    max_body_bytes: int
    sampling_defaults: SamplingParams = field(default_factory=SamplingParams)
    vocab_size: int | None = None
    keep_alive_s: float = KEEP_ALIVE_S
    prompt_thread: ThreadPoolExecutor = field(default_factory=_new_prompt_thread)

    async def build_prompt(self, conversation: Conversation, tenant: str) -> ChatPrompt:
        """Build a prompt in the prompt thread, if the queue of the engine has room.

        Raises:
            InvalidRequest: The chat template cannot render this conversation.
            Overloaded: The queue is full when the prompt thread gets to this prompt.
            Draining: The engine refuses new requests.
            EngineDown: The step loop has ended.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.prompt_thread, self._build, conversation, tenant)

    async def count_tokens(self, conversation: Conversation, tenant: str) -> int:
        """Count the tokens of a prompt in the prompt thread.

        Raises:
            InvalidRequest: The chat template cannot render this conversation.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self.prompt_thread, self.prompt_builder.count, conversation, tenant
        )

    def _build(self, conversation: Conversation, tenant: str) -> ChatPrompt:
        # The queue may have filled up while this prompt waited for the thread.
        self.engine.require_room()
        return self.prompt_builder.build(conversation, tenant)

    def require_token_ids(self, sampling: SamplingParams) -> None:
        """Check the token ids of ``logit_bias``.

        Raises:
            InvalidRequest: A token id is not in the vocabulary.
        """
        largest = max(sampling.logit_bias, default=0)
        if self.vocab_size is not None and largest >= self.vocab_size:
            raise InvalidRequest(
                f"logit_bias: token id {largest} is not below the limit of {self.vocab_size}",
                param="logit_bias",
            )
