"""The response bodies of chat completions, whole or in chunks.

Owns the documented models and the encoding of an answer. Chunks are plain dicts, because one is
built per token.
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
    """How much of the prompt was reused."""

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


class ResponseFunctionCall(BaseModel):
    """The name and arguments of a tool call; the arguments are a JSON string."""

    name: str
    arguments: str


class ResponseToolCall(BaseModel):
    """A tool call of the answer."""

    id: str
    type: Literal["function"] = "function"
    function: ResponseFunctionCall


class AnswerMessage(BaseModel):
    """The answer; a client may send it back unchanged.

    ``content`` is null only if there are tool calls.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ResponseToolCall] | None = None


class Choice(BaseModel):
    """The only choice of a response."""

    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    """A response that is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: ResponseTimings


def usage_of(output: GenerationOutput) -> dict[str, Any]:
    """Build the ``usage`` of a response. On a miss ``cached_tokens`` is 0, not null."""
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
    """The engine's finish reason, or ``tool_calls`` if the answer ended with tool calls."""
    assert output.finished is not None, "the finish reason is known after the last event"
    reason = output.finished.finish_reason
    return "tool_calls" if output.calls and reason is FinishReason.STOP else reason


class ChatCompletionEncoder:
    """Encodes one answer as a chat completion. Implements `ResponseEncoder`.

    Exactly one chunk has ``usage`` and ``timings``, so that clients may add up all chunks: with
    ``includes_usage`` OpenAI's extra chunk without choices, otherwise the one with the finish
    reason.
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
        """The id of the request."""
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
        """The first chunk: the role, without text."""
        yield self._chunk({"role": "assistant", "content": ""})

    def encode_part(self, part: OutputPart) -> Iterator[bytes]:
        """A delta of content or reasoning, or of a tool call: its name, then its arguments."""
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
        """The chunk with the finish reason, and the usage chunk if ``includes_usage``."""
        numbers: dict[str, Any] = {"usage": usage_of(output), "timings": output.timings()}
        reason, reports = finish_reason_of(output), output.take_reports()
        if self._includes_usage:
            yield self._chunk({}, finish_reason=reason, reports=reports)
            yield self._chunk(None, **numbers)
        else:
            yield self._chunk({}, finish_reason=reason, reports=reports, **numbers)
        yield DONE

    def encode_error(self, error: Exception) -> bytes:
        """The last event of a stream that failed."""
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
