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
from kvreg_service.api.generation.output import GenerationOutput, OutputPart, ToolCallPart
from kvreg_service.api.generation.usage import KvregUsage, ResponseTimings, reuse_of
from kvreg_service.api.openai.logprobs import ChoiceLogprobs, logprobs_of
from kvreg_service.core.labels import FinishReason
from kvreg_service.engine.interface.generation import TokenReport


class PromptTokensDetails(BaseModel):
    """How much of the prompt was not computed again."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """How much of the completion was reasoning."""

    reasoning_tokens: int


class Usage(BaseModel):
    """The tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    kvreg: KvregUsage


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
    """The answer; a client may send it back unchanged.

    ``content`` is null only beside tool calls.
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
    """A complete response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: ResponseTimings


def usage_of(output: GenerationOutput) -> dict[str, Any]:
    """Build the ``usage`` of a response. Every number is an integer, also on a miss."""
    admission = output.admission
    assert admission is not None, "the usage is known after the first event"
    return {
        "prompt_tokens": admission.prompt_tokens,
        "completion_tokens": output.completion_tokens,
        "total_tokens": admission.prompt_tokens + output.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": admission.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": output.reasoning_tokens},
        "kvreg": reuse_of(output),
    }


def finish_reason_of(output: GenerationOutput) -> str:
    """The engine's reason, or ``tool_calls`` where the answer ended by itself behind calls."""
    assert output.finished is not None, "the finish reason is known after the last event"
    reason = output.finished.finish_reason
    return "tool_calls" if output.calls and reason is FinishReason.STOP else reason


class ChatCompletionEncoder:
    """Writes one answer as a chat completion. Implements `ResponseEncoder`.

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

    def encode_body(self, output: GenerationOutput) -> dict[str, Any]:
        """Build the body of a response that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": output.content}
        if output.reasoning is not None:
            message["reasoning_content"] = output.reasoning
        if output.calls:
            message["content"] = output.content or None
            message["tool_calls"] = [
                {
                    "id": f"call_{part.call_id}",
                    "type": "function",
                    "function": {"name": part.call.name, "arguments": part.call.arguments_json},
                }
                for part in output.calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": logprobs_of(output.reports) if self._includes_logprobs else None,
            "finish_reason": finish_reason_of(output),
        }
        return {
            "id": self.request_id,
            "object": "chat.completion",
            "created": self._created_s,
            "model": self._model,
            "choices": [choice],
            "usage": usage_of(output),
            "timings": output.timings(),
        }

    def encode_start(self, output: GenerationOutput) -> Iterator[bytes]:  # noqa: ARG002
        """The first chunk: the role, and no text yet."""
        yield self._chunk({"role": "assistant", "content": ""})

    def encode_part(self, part: OutputPart) -> Iterator[bytes]:
        """More text, as content or as reasoning, or a call: its name first, then its arguments."""
        if not isinstance(part, ToolCallPart):
            field = "content" if part.kind == "content" else "reasoning_content"
            yield self._chunk({field: part.text}, reports=part.reports)
            return
        head = {
            "index": part.index,
            "id": f"call_{part.call_id}",
            "type": "function",
            "function": {"name": part.call.name, "arguments": ""},
        }
        yield self._chunk({"tool_calls": [head]})
        for text in part.call.argument_pieces():
            delta = {"index": part.index, "function": {"arguments": text}}
            yield self._chunk({"tool_calls": [delta]})

    def encode_end(self, output: GenerationOutput) -> Iterator[bytes]:
        """The chunk with the finish reason, and the one with the usage when it was asked for."""
        numbers: dict[str, Any] = {"usage": usage_of(output), "timings": output.timings()}
        reason, reports = finish_reason_of(output), output.take_reports()
        if self._includes_usage:
            yield self._chunk({}, finish_reason=reason, reports=reports)
            yield self._chunk(None, **numbers)
        else:
            yield self._chunk({}, finish_reason=reason, reports=reports, **numbers)
        yield DONE

    def encode_error(self, error: Exception) -> bytes:
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
