"""What the routes share: the engine, the prompt builder and what is known about the served model.

Owns the references, built once by ``create_app``, and the one thread in which prompts are built.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvreg_service.api.body.served_model import ServedModel
from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.errors import InvalidRequest
from kvreg_service.core.sampling_params import SamplingParams
from kvreg_service.engine.interface.protocol import EngineProtocol

if TYPE_CHECKING:
    from kvreg_service.chat.echo.generated_texts import GeneratedAnswer
    from kvreg_service.chat.prompt.builder import ChatPrompt


# Shorter than the silence after which common proxies and clients give up.
KEEP_ALIVE_S = 10.0


class PromptBuilderProtocol(Protocol):
    """Turns a conversation into tokens."""

    def build(self, conversation: Conversation, tenant: str) -> ChatPrompt:
        """Render and tokenise. Called from one thread at a time, never from the event loop's.

        What is remembered of answers is used for the tenant to whom they were given only.

        Raises:
            InvalidRequest: No template can render this conversation.
        """
        ...

    def count(self, conversation: Conversation, tenant: str) -> int:
        """Return how many tokens ``build`` would give. Called like ``build``, and raises as it."""
        ...

    def remember(self, prompt: ChatPrompt, answer: GeneratedAnswer) -> None:
        """Note how the model spelled an answer that its client may echo. From any thread."""
        ...


def _new_prompt_thread() -> ThreadPoolExecutor:
    # One thread: a builder has caches and need not guard them, and the engine keeps its cores.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvreg-prompt")


@dataclass(frozen=True)
class ApiContext:
    """Everything that the routes of both APIs use.

    ``vocab_size`` limits the token ids of ``logit_bias``; None means that it is not known. A stream
    sends an event at least every ``keep_alive_s`` seconds while its answer grows.
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
        """Build a prompt without holding up the event loop, if the engine still could take it.

        Raises:
            InvalidRequest: No template can render this conversation.
            Overloaded: The queue was full when the prompt's turn came.
            Draining: The engine takes nothing new.
            EngineDown: The step loop has ended.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.prompt_thread, self._build, conversation, tenant)

    async def count_tokens(self, conversation: Conversation, tenant: str) -> int:
        """Count the tokens of a prompt without holding up the event loop.

        Raises:
            InvalidRequest: No template can render this conversation.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self.prompt_thread, self.prompt_builder.count, conversation, tenant
        )

    def _build(self, conversation: Conversation, tenant: str) -> ChatPrompt:
        # Others may have filled the queue while this one waited for the thread.
        self.engine.require_room()
        return self.prompt_builder.build(conversation, tenant)

    def require_token_ids(self, sampling: SamplingParams) -> None:
        """Refuse a bias on tokens that the model does not have.

        Raises:
            InvalidRequest: A token id lies outside of the vocabulary.
        """
        largest = max(sampling.logit_bias, default=0)
        if self.vocab_size is not None and largest >= self.vocab_size:
            raise InvalidRequest(
                f"logit_bias: token id {largest} is not below the vocabulary's {self.vocab_size}",
                param="logit_bias",
            )
