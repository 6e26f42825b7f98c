"""What a request asks for, in the terms of neither API."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class AskedAnswer:
    """One answer that somebody asks for. Bodies of either API become one of these.

    ``max_tokens`` is None for as many as the context holds, ``ttl_s`` for no limit of its own.
    Without ``may_reuse`` the whole prompt is computed.
    With ``parses_tool_calls`` the calls in the answer are told from its text.
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
