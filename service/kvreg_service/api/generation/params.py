"""The parameters of one generation, independent of the API of the request."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.requests.request import CachePolicy
from kvreg_service.core.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class GenerationParams:
    """What either API reads from a validated body.

    If ``max_tokens`` is None, the context limits the answer. ``parses_tool_calls`` is false if the
    client wants tool calls as text.
    """

    conversation: Conversation
    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    cache_policy: CachePolicy
    parses_tool_calls: bool
    is_streamed: bool
