"""The bodies that a chat completion answers with, whole or in chunks.

Owns the documented shapes and how an answer becomes one of them. Chunks are built as plain dicts:
they are made once per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from kvreg_service.api.chat_answer import ChatAnswer, Piece
from kvreg_service.engine.interface import Attach, FinishReason, ReusePath


class PromptTokensDetails(BaseModel):
    """How much of the prompt was not computed again."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """How much of the completion was reasoning."""

    reasoning_tokens: int


class KvregUsage(BaseModel):
    """Where the prompt came from. ``computed_tokens`` and the cached ones add up to the prompt."""

    reuse_path: ReusePath
    attach: Attach
    computed_tokens: int


class Usage(BaseModel):
    """The tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    kvreg: KvregUsage


class ResponseTimings(BaseModel):
    """The times of one request in seconds; ``ttft_s`` counts from its arrival at the engine."""

    queue_s: float
    attach_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float


class AnswerMessage(BaseModel):
    """The answer. ``content`` is always text, so that it can be sent back as it is."""

    role: Literal["assistant"] = "assistant"
    content: str
    reasoning_content: str | None = None


class Choice(BaseModel):
    """The one choice of a response."""

    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: ResponseTimings


def whole_answer(
    answer: ChatAnswer, *, request_id: str, created_s: int, model: str
) -> dict[str, Any]:
    """Build the body of a response that is not streamed."""
    assert answer.finished is not None, "an answer is whole after its last event"
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": answer.finished.finish_reason,
    }
    return {
        "id": request_id,
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "choices": [choice],
        "usage": answer.usage(),
        "timings": answer.timings(),
    }


@dataclass(frozen=True)
class ChunkFormat:
    """Builds the chunks of one streamed answer.

    Exactly one chunk carries ``usage`` and ``timings``: with ``includes_usage`` the extra one
    without choices, as OpenAI does it, and otherwise the one with the finish reason. So whoever
    adds up the usage of all chunks counts nothing twice.
    """

    request_id: str
    created_s: int
    model: str
    includes_usage: bool

    def opening(self) -> dict[str, Any]:
        """The first chunk: the role, and no text yet."""
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: Piece) -> dict[str, Any]:
        """More text, as content or as reasoning."""
        field = "content" if piece.kind == "content" else "reasoning_content"
        return self._chunk({field: piece.text})

    def closing(self, answer: ChatAnswer) -> list[dict[str, Any]]:
        """The chunk with the finish reason, and the one with the usage when it was asked for."""
        assert answer.finished is not None, "a stream is closed after the last event"
        last = self._chunk({}, finish_reason=answer.finished.finish_reason)
        numbers = {"usage": answer.usage(), "timings": answer.timings()}
        if not self.includes_usage:
            return [last | numbers]
        return [last, self._chunk(None) | numbers]

    def _chunk(
        self, delta: dict[str, Any] | None, *, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk: dict[str, Any] = {
            "id": self.request_id,
            "object": "chat.completion.chunk",
            "created": self.created_s,
            "model": self.model,
            "choices": [] if delta is None else [choice],
        }
        if self.includes_usage:
            chunk["usage"] = None
        return chunk
