"""The response bodies of the Messages API, whole or as events.

Owns the documented models and the encoding of an answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel

from kvreg_service.api.errors import messages_body_of
from kvreg_service.api.generation.event_stream import sse_event
from kvreg_service.api.generation.output import GenerationOutput, OutputPart, TextPart, ToolCallPart
from kvreg_service.api.generation.usage import KvregUsage, ResponseTimings, reuse_of
from kvreg_service.core.labels import FinishReason

# A placeholder: some clients discard thinking blocks without a signature.
_SIGNATURE = "kvreg"


class ResponseBlock(BaseModel):
    """A block of the answer; its type determines its fields."""

    type: Literal["text", "thinking", "tool_use"]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class OutputTokensDetails(BaseModel):
    """How much of the answer was reasoning."""

    thinking_tokens: int


class MessagesUsage(BaseModel):
    """The tokens of one request. ``input_tokens`` and the cached tokens add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    kvreg: KvregUsage


class ResponseMessage(BaseModel):
    """A response that is not streamed."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ResponseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessagesUsage
    timings: ResponseTimings


class TokenCount(BaseModel):
    """The number of tokens of a prompt."""

    input_tokens: int


class MessageEncoder:
    """Encodes one answer as a message. Implements `ResponseEncoder`.

    Owns the open block of a stream.
    """

    keep_alive = sse_event("ping", {"type": "ping"})

    def __init__(self, model: str) -> None:
        self.request_id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._open: str | None = None
        self._num_blocks = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The id of the request, in kvreg's header and in Anthropic's."""
        return {"X-Request-Id": self.request_id, "request-id": self.request_id}

    def encode_body(self, output: GenerationOutput) -> dict[str, Any]:
        """Build the body of a response that is not streamed."""
        blocks: list[dict[str, Any]] = []
        for part in output.parts:
            if isinstance(part, ToolCallPart):
                blocks.append({**_empty_block(part), "input": dict(part.call.arguments)})
                continue
            kind = _type_of(part)
            if not blocks or blocks[-1]["type"] != kind:
                blocks.append(_empty_block(part))
                if kind == "thinking":
                    blocks[-1]["signature"] = _SIGNATURE
            blocks[-1][kind] += part.text
        return {
            **self._message(output),
            "content": blocks,
            **_stop_of(output),
            "timings": output.timings(),
        }

    def encode_start(self, output: GenerationOutput) -> Iterator[bytes]:
        """The message without its content, and a ping."""
        yield sse_event(
            "message_start", {"type": "message_start", "message": self._message(output)}
        )
        yield self.keep_alive

    def encode_part(self, part: OutputPart) -> Iterator[bytes]:
        """A delta, and the start and stop events of blocks if the type changes."""
        kind = _type_of(part)
        if self._open != kind:
            yield from self._close()
            yield self._block_event("start", {"content_block": _empty_block(part)})
            self._open = kind
        if isinstance(part, ToolCallPart):
            for text in part.call.argument_pieces():
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            # The call is complete: the client can run it at once.
            yield from self._close()
        else:
            yield self._delta({"type": f"{kind}_delta", kind: part.text})

    def encode_end(self, output: GenerationOutput) -> Iterator[bytes]:
        """The end of the last block, the stop reason with the final usage, and the end."""
        yield from self._close()
        end = {
            "type": "message_delta",
            "delta": _stop_of(output),
            "usage": _usage_of(output),
            "timings": output.timings(),
        }
        yield sse_event("message_delta", end)
        yield sse_event("message_stop", {"type": "message_stop"})

    def encode_error(self, error: Exception) -> bytes:
        """The last event of a stream that failed."""
        return sse_event("error", messages_body_of(error))

    def _message(self, output: GenerationOutput) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage_of(output),
        }

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        yield self._block_event("stop", {})
        self._open = None
        self._num_blocks += 1

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._block_event("delta", {"delta": delta})

    def _block_event(self, what: str, fields: dict[str, Any]) -> bytes:
        name = f"content_block_{what}"
        return sse_event(name, {"type": name, "index": self._num_blocks, **fields})


def _type_of(part: OutputPart) -> str:
    if isinstance(part, TextPart):
        return "text" if part.kind == "content" else "thinking"
    return "tool_use"


def _empty_block(part: OutputPart) -> dict[str, Any]:
    if isinstance(part, ToolCallPart):
        call_id = f"toolu_{part.call_id}"
        return {"type": "tool_use", "id": call_id, "name": part.call.name, "input": {}}
    if part.kind == "content":
        return {"type": "text", "text": ""}
    return {"type": "thinking", "thinking": "", "signature": ""}


def _stop_of(output: GenerationOutput) -> dict[str, str | None]:
    finished = output.finished
    assert finished is not None, "the finish reason is known after the last event"
    reason, stop_string = "end_turn", None
    if finished.finish_reason is FinishReason.LENGTH:
        reason = "max_tokens"
    elif finished.stop_string is not None:
        reason, stop_string = "stop_sequence", finished.stop_string
    elif output.calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": stop_string}


def _usage_of(output: GenerationOutput) -> dict[str, Any]:
    """Build the ``usage`` of a response. ``input_tokens`` excludes cached tokens."""
    admission = output.admission
    assert admission is not None, "the usage is known after the first event"
    return {
        "input_tokens": admission.computed_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": admission.cached_tokens,
        "output_tokens": output.completion_tokens,
        "output_tokens_details": {"thinking_tokens": output.reasoning_tokens},
        "kvreg": reuse_of(output),
    }
