"""The parameters of one generation, whichever API the request came by."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.request import CachePolicy
from kvreg_service.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class GenerationParams:
    """What either API reads from a checked body.

    ``max_tokens`` is None for as many as the context holds. With ``parses_tool_calls`` tool calls
    are parsed out of the generated text.
    """

    conversation: Conversation
    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    cache_policy: CachePolicy
    parses_tool_calls: bool
    is_streamed: bool
