"""The body of ``POST /v1/chat/completions``: every field that is read, with its limits.

Owns which fields are used, ignored or refused. ``IGNORED_FIELDS`` are OpenAI's fields without
effect; unknown fields are ignored as well, because clients send many. An unsupported value is
refused with the field, the value and what is supported, and never replaced silently.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator
from pydantic.config import JsonDict

from kvreg_service.api.body.documentation import NOTHING
from kvreg_service.api.body.extension_fields import ExtensionFields, require_few_marks
from kvreg_service.api.body.request_body import RequestBody, unsupported
from kvreg_service.api.body.sampling_fields import SamplingFields
from kvreg_service.api.body.stop_strings import MAX_STOP_STRINGS, StopString
from kvreg_service.api.generation.params import GenerationParams
from kvreg_service.api.openai.messages import ChatMessage
from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.requests.sampling_params import SamplingParams

# Accepted without effect: bookkeeping, hints and routing of a cloud service.
IGNORED_FIELDS = (
    "metadata",
    "moderation",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)
_TOOL_SCHEMA: JsonDict = {
    "required": ["type", "function"],
    "properties": {
        "type": {"enum": ["function"]},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}},
        },
    },
}


class StreamOptions(RequestBody):
    """Options of a streamed response."""

    include_usage: bool | None = None


class ResponseFormat(RequestBody):
    """The format of the answer; only ``text`` is supported."""

    type: str = Field(json_schema_extra={"enum": ["text"]})


def _kind_of_stop(value: object) -> str:
    return "<many>" if isinstance(value, list) else "<one>"


Stop = Annotated[
    Annotated[StopString, Tag("<one>")]
    | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS), Tag("<many>")],
    Discriminator(_kind_of_stop),
]


class ChatRequest(SamplingFields, ExtensionFields):
    """A chat completion request. A null field counts as missing."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)

    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    tools: list[Annotated[dict[str, Any], Field(json_schema_extra=_TOOL_SCHEMA)]] | None = None
    tool_choice: Any = Field(default=None, json_schema_extra={"enum": ["auto", "none", None]})

    reasoning_effort: str | None = None
    continue_final_message: bool | None = None

    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    # Only the values without effect are supported.
    n: int | None = Field(default=None, json_schema_extra={"enum": [1, None]})
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = Field(default=None, json_schema_extra={"enum": [["text"], None]})
    audio: Any = Field(default=None, json_schema_extra=NOTHING)
    functions: Any = Field(default=None, json_schema_extra=NOTHING)
    function_call: Any = Field(default=None, json_schema_extra=NOTHING)
    web_search_options: Any = Field(default=None, json_schema_extra=NOTHING)

    @field_validator("n")
    @classmethod
    def _one_choice(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise unsupported("one choice per request is supported; send 1, or several requests")
        return value

    @field_validator("response_format")
    @classmethod
    def _text_only(cls, value: ResponseFormat | None) -> ResponseFormat | None:
        if value is not None and value.type != "text":
            raise unsupported(
                "response format '{type}' is not supported; only 'text' is", type=value.type[:60]
            )
        return value

    @field_validator("modalities")
    @classmethod
    def _text_modality_only(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and value != ["text"]:
            raise unsupported("only ['text'] is supported")
        return value

    @field_validator("audio", "web_search_options")
    @classmethod
    def _must_be_missing(cls, value: object) -> object:
        if value is not None:
            raise unsupported("the field is not supported; leave it out")
        return value

    @field_validator("functions", "function_call")
    @classmethod
    def _replaced_by_tools(cls, value: object) -> object:
        if value is not None:
            raise unsupported("the deprecated field is not supported; use tools and tool_choice")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _free_choice(cls, value: object) -> object:
        if value not in (None, "auto", "none"):
            raise unsupported("a forced tool call is not supported; use 'auto' or 'none'")
        return value

    @field_validator("tools")
    @classmethod
    def _functions_only(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for number, tool in enumerate(value or []):
            function = tool.get("function")
            if tool.get("type") != "function":
                raise unsupported(
                    "tool {number} has the type '{type}'; only 'function' is supported",
                    number=number,
                    type=str(tool.get("type"))[:60],
                )
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise unsupported("tool {number} has no function with a name", number=number)
        return value

    @model_validator(mode="after")
    def _marks_are_few(self) -> Self:
        num_marks = sum(bool(message.cache_anchor) for message in self.messages)
        require_few_marks(num_marks, "cache_anchor")
        return self

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise unsupported("top_logprobs needs logprobs = true")
        return self

    @property
    def token_limit(self) -> int | None:
        """The smaller of the two token limits, or None if neither is set."""
        limits = [x for x in (self.max_tokens, self.max_completion_tokens) if x is not None]
        return min(limits, default=None)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings of the request."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with OpenAI's extra usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def conversation(self) -> Conversation:
        """Build the input of the prompt builder.

        ``reasoning_effort: none`` also disables thinking, unless ``enable_thinking`` is set.
        """
        conversation = self.build_conversation(
            [
                message.model_dump(exclude_none=True, exclude={"cache_anchor"})
                for message in self.messages
            ],
            self.tools,
            effort=self.reasoning_effort,
            default_thinking=False if self.reasoning_effort == "none" else None,
            continue_final_message=bool(self.continue_final_message),
        )
        marked = (i for i, message in enumerate(self.messages) if message.cache_anchor)
        return replace(conversation, marked_messages=frozenset(marked))

    def params(self, defaults: SamplingParams) -> GenerationParams:
        """Build the parameters of the generation; missing sampling fields take ``defaults``."""
        num_logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return GenerationParams(
            conversation=self.conversation(),
            sampling=replace(self.sampling(defaults), num_logprobs=num_logprobs),
            max_tokens=self.token_limit,
            stop=self.stop_strings,
            cache_policy=self.cache_policy,
            parses_tool_calls=self.tool_choice != "none",
            is_streamed=bool(self.stream),
        )
