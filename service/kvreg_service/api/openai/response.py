"""The bodies that a chat completion answers with, whole or in chunks.

Owns the documented shapes and how an answer becomes one of them. Chunks are built as plain dicts:
they are made once per token.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from kvreg_service.api.errors import body_of
from kvreg_service.api.generation.event_stream import DONE, KEEP_ALIVE, sse_data, sse_event
from kvreg_service.api.generation.output import CallPiece, ChatAnswer, Piece
from kvreg_service.api.openai.logprobs import ChoiceLogprobs, logprobs_of
from kvreg_service.core.labels import Attach, FinishReason, ReusePath
from kvreg_service.engine.interface import TokenReport


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


class CalledFunction(BaseModel):
    """A function and its arguments, which are the text of a JSON object."""

    name: str
    arguments: str


class AnsweredToolCall(BaseModel):
    """One call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(BaseModel):
    """The answer, which can be sent back as it is.

    ``content`` is null when the answer is nothing but tool calls; without calls it is always text.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[AnsweredToolCall] | None = None


class Choice(BaseModel):
    """The one choice of a response."""

    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: ResponseTimings


def usage_of(answer: ChatAnswer) -> dict[str, Any]:
    """Build the ``usage`` of a response. Every number is an integer, also on a miss."""
    started = answer.started
    assert started is not None, "usage is asked for after the first event only"
    return {
        "prompt_tokens": started.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": started.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": started.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "kvreg": reuse_of(answer),
    }


def reuse_of(answer: ChatAnswer) -> dict[str, Any]:
    """Build what either API says under ``usage.kvreg``."""
    started = answer.started
    assert started is not None, "usage is asked for after the first event only"
    return {
        "reuse_path": started.reuse_path,
        "attach": started.attach,
        "computed_tokens": started.computed_tokens,
    }


def finish_reason_of(answer: ChatAnswer) -> str:
    """The engine's reason, or ``tool_calls`` where the answer ended by itself behind calls."""
    assert answer.finished is not None, "the reason is asked for after the last event only"
    reason = answer.finished.finish_reason
    return "tool_calls" if answer.calls and reason is FinishReason.STOP else reason


class ChatFormat:
    """Writes one answer as a chat completion. Implements `AnswerFormat`.

    Exactly one chunk carries ``usage`` and ``timings``: with ``includes_usage`` the extra one
    without choices, as OpenAI does it, and otherwise the one with the finish reason. So whoever
    adds up the usage of all chunks counts nothing twice.
    """

    keep_alive = KEEP_ALIVE

    def __init__(
        self, model: str, *, includes_usage: bool, includes_logprobs: bool = False
    ) -> None:
        self.request_id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created_s = int(time.time())
        self._model = model
        self._includes_usage = includes_usage
        self._includes_logprobs = includes_logprobs

    @property
    def headers(self) -> Mapping[str, str]:
        """Names the request."""
        return {"X-Request-Id": self.request_id}

    def whole(self, answer: ChatAnswer) -> dict[str, Any]:
        """Build the body of a response that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [
                {
                    "id": f"call_{piece.call_id}",
                    "type": "function",
                    "function": {"name": piece.call.name, "arguments": piece.call.arguments_json},
                }
                for piece in answer.calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": logprobs_of(answer.reports) if self._includes_logprobs else None,
            "finish_reason": finish_reason_of(answer),
        }
        return {
            "id": self.request_id,
            "object": "chat.completion",
            "created": self._created_s,
            "model": self._model,
            "choices": [choice],
            "usage": usage_of(answer),
            "timings": answer.timings(),
        }

    def opening(self, answer: ChatAnswer) -> Iterator[bytes]:  # noqa: ARG002
        """The first chunk: the role, and no text yet."""
        yield self._chunk({"role": "assistant", "content": ""})

    def more(self, piece: Piece) -> Iterator[bytes]:
        """More text, as content or as reasoning, or a call: its name first, then its arguments."""
        if not isinstance(piece, CallPiece):
            field = "content" if piece.kind == "content" else "reasoning_content"
            yield self._chunk({field: piece.text}, reports=piece.reports)
            return
        head = {
            "index": piece.index,
            "id": f"call_{piece.call_id}",
            "type": "function",
            "function": {"name": piece.call.name, "arguments": ""},
        }
        yield self._chunk({"tool_calls": [head]})
        for text in piece.call.argument_pieces():
            part = {"index": piece.index, "function": {"arguments": text}}
            yield self._chunk({"tool_calls": [part]})

    def closing(self, answer: ChatAnswer) -> Iterator[bytes]:
        """The chunk with the finish reason, and the one with the usage when it was asked for."""
        numbers: dict[str, Any] = {"usage": usage_of(answer), "timings": answer.timings()}
        reason, reports = finish_reason_of(answer), answer.take_reports()
        if self._includes_usage:
            yield self._chunk({}, finish_reason=reason, reports=reports)
            yield self._chunk(None, **numbers)
        else:
            yield self._chunk({}, finish_reason=reason, reports=reports, **numbers)
        yield DONE

    def failure(self, error: Exception) -> bytes:
        """The event that ends a stream which failed."""
        return sse_event("error", body_of(error))

    def _chunk(
        self,
        delta: dict[str, Any] | None,
        *,
        finish_reason: str | None = None,
        reports: Sequence[TokenReport] = (),
        **numbers: Any,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs_of(reports) if reports else None,
            "finish_reason": finish_reason,
        }
        chunk: dict[str, Any] = {
            "id": self.request_id,
            "object": "chat.completion.chunk",
            "created": self._created_s,
            "model": self._model,
            "choices": [] if delta is None else [choice],
        }
        if self._includes_usage:
            chunk["usage"] = None
        return sse_data(chunk | numbers)
