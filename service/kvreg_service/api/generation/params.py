"""The parameters of one generation, whichever API the request came by."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class GenerationParams:
    """What either API reads from a checked body.

    ``max_tokens`` is None for as many as the context holds, ``ttl_s`` is None for no limit.
    Without ``may_reuse`` the whole prompt is computed. With ``parses_tool_calls`` tool calls are
    parsed out of the generated text.
    """

    conversation: Conversation
    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    retain: bool
    may_reuse: bool
    priority: int
    ttl_s: float | None
    parses_tool_calls: bool
    is_streamed: bool
