"""The body of ``POST /v1/chat/completions``: every field that is read, with its limits.

Owns which fields are used, ignored or refused. ``IGNORED_FIELDS`` names those of OpenAI that have
no effect here; any other unknown field is ignored as well, because clients send many. What cannot
be done is refused with the field, its value and what is supported, never silently done otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from kvreg_service.api.chat_message import ChatMessage
from kvreg_service.api.request_body import RequestBody, unsupported
from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.sampling_params import SamplingParams

# Accepted from any client and without effect: bookkeeping, hints and placements of a cloud service.
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
_MAX_STOP_STRINGS = 16
_MAX_BIASED_TOKENS = 1024
_MAX_TTL_S = 30 * 24 * 3600.0
_THINKING_SWITCHES = ("enable_thinking", "preserve_thinking")


class StreamOptions(RequestBody):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ResponseFormat(RequestBody):
    """The form of the answer; only ``text`` is served."""

    type: str


def _kind_of_stop(value: object) -> str:
    return "<many>" if isinstance(value, list) else "<one>"


StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Stop = Annotated[
    Annotated[StopString, Tag("<one>")]
    | Annotated[list[StopString], Field(max_length=_MAX_STOP_STRINGS), Tag("<many>")],
    Discriminator(_kind_of_stop),
]


class ChatRequest(RequestBody):
    """A chat completion request. A field that is null counts as missing."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)

    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    # Some clients write -1 for "off".
    top_k: int | None = Field(default=None, ge=-1, le=1_000_000)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=_MAX_BIASED_TOKENS
    )

    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = Field(default=None, json_schema_extra={"enum": ["auto", "none", None]})

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None

    retain_prefix: bool | None = None
    prompt_cache_read_only: bool | None = None
    cache_ttl_s: float | None = Field(default=None, gt=0, le=_MAX_TTL_S)
    priority: int | None = Field(default=None, ge=-1000, le=1000)

    # Known only to be refused when they ask for what is not served.
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None

    @field_validator("n")
    @classmethod
    def _one_choice(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise unsupported("one choice per request is served; send 1 or several requests")
        return value

    @field_validator("logprobs", "top_logprobs")
    @classmethod
    def _no_logprobs(cls, value: int | None) -> int | None:
        if value:
            raise unsupported("log probabilities are not served yet; send false, 0 or nothing")
        return value

    @field_validator("response_format")
    @classmethod
    def _text_only(cls, value: ResponseFormat | None) -> ResponseFormat | None:
        if value is not None and value.type != "text":
            raise unsupported(
                "the format '{type}' is not served; only 'text' is", type=value.type[:60]
            )
        return value

    @field_validator("modalities")
    @classmethod
    def _no_sound(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and value != ["text"]:
            raise unsupported("only ['text'] is served")
        return value

    @field_validator("audio", "web_search_options")
    @classmethod
    def _not_served(cls, value: object) -> object:
        if value is not None:
            raise unsupported("this is not served; leave it out")
        return value

    @field_validator("functions", "function_call")
    @classmethod
    def _replaced_by_tools(cls, value: object) -> object:
        if value is not None:
            raise unsupported("this older form is not served; use tools and tool_choice")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _free_choice(cls, value: object) -> object:
        if value not in (None, "auto", "none"):
            raise unsupported("a forced tool call is not served; 'auto' and 'none' are")
        return value

    @field_validator("tools")
    @classmethod
    def _functions_only(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for number, tool in enumerate(value or []):
            function = tool.get("function")
            if tool.get("type") != "function":
                raise unsupported(
                    "tool {number} is of type '{type}'; only 'function' is served",
                    number=number,
                    type=str(tool.get("type"))[:60],
                )
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise unsupported("tool {number} has no function with a name", number=number)
        return value

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not (key.isascii() and key.isdecimal() and len(key) < 12):
                raise unsupported("'{key}' is not a token id", key=key[:60])
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _switches_are_flags(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in _THINKING_SWITCHES:
            if not isinstance((value or {}).get(name), bool | None):
                raise unsupported("'{name}' is neither true nor false", name=name)
        return value

    @model_validator(mode="after")
    def _retention_is_consistent(self) -> ChatRequest:
        if self.retain_prefix and self.prompt_cache_read_only:
            raise unsupported(
                "retain_prefix = true and prompt_cache_read_only = true contradict each other"
            )
        return self

    @property
    def retains(self) -> bool:
        """Whether the finished sequence may be kept for a next turn."""
        return self.retain_prefix is not False and not self.prompt_cache_read_only

    @property
    def token_limit(self) -> int | None:
        """The smaller of the two limits a client may set, or None when it set none."""
        limits = [x for x in (self.max_tokens, self.max_completion_tokens) if x is not None]
        return min(limits, default=None)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts at which the answer ends."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        """Whether a streamed answer ends with OpenAI's extra usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def conversation(self) -> Conversation:
        """Build what the prompt is made of. A field beside ``chat_template_kwargs`` wins over it.

        ``reasoning_effort`` is a template variable; ``none`` also turns thinking off where no
        switch says otherwise.
        """
        variables = dict(self.chat_template_kwargs or {})
        kwargs_thinking, kwargs_preserve = (variables.pop(x, None) for x in _THINKING_SWITCHES)
        enable_thinking = _first_set(self.enable_thinking, kwargs_thinking)
        if self.reasoning_effort is not None:
            variables["reasoning_effort"] = self.reasoning_effort
            if enable_thinking is None and self.reasoning_effort == "none":
                enable_thinking = False
        return Conversation(
            messages=[message.model_dump(exclude_none=True) for message in self.messages],
            tools=self.tools or None,
            enable_thinking=enable_thinking,
            preserve_thinking=_first_set(self.preserve_thinking, kwargs_preserve),
            variables=variables,
            continue_final_message=bool(self.continue_final_message),
        )

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """Build the sampling parameters; what the client left out comes from ``defaults``."""
        top_k = self.top_k if self.top_k is None or self.top_k > 0 else None
        return SamplingParams(
            temperature=_or(self.temperature, defaults.temperature),
            top_p=_or(self.top_p, defaults.top_p),
            top_k=defaults.top_k if self.top_k is None else top_k,
            min_p=_or(self.min_p, defaults.min_p),
            presence_penalty=_or(self.presence_penalty, defaults.presence_penalty),
            frequency_penalty=_or(self.frequency_penalty, defaults.frequency_penalty),
            repetition_penalty=_or(self.repetition_penalty, defaults.repetition_penalty),
            seed=self.seed,
            logit_bias={int(key): bias for key, bias in (self.logit_bias or {}).items()},
        )


def _first_set(*switches: bool | None) -> bool | None:
    return next((switch for switch in switches if switch is not None), None)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
