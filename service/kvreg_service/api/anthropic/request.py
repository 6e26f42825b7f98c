"""The bodies of ``POST /v1/messages`` and its ``count_tokens``: every field, with its limits.

Owns which fields are used, ignored or refused. ``IGNORED_FIELDS`` are Anthropic's fields without
effect; unknown fields are ignored as well. An unsupported value is refused with the field, the
value and what is supported, and never replaced silently.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from kvreg_service.api.anthropic.blocks import (
    BlockContent,
    MarkableBlock,
    Message,
    ToolUseBlock,
    chat_messages,
    count_marks,
)
from kvreg_service.api.body.documentation import NOTHING
from kvreg_service.api.body.extension_fields import ExtensionFields, require_few_marks
from kvreg_service.api.body.request_body import RequestBody, unsupported
from kvreg_service.api.body.sampling_fields import SamplingFields
from kvreg_service.api.body.stop_strings import MAX_STOP_STRINGS, StopString
from kvreg_service.api.generation.params import GenerationParams
from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.requests.sampling_params import SamplingParams

# Accepted without effect. The top-level `cache_control` requests what is the default: to keep the
# whole conversation.
IGNORED_FIELDS = (
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
)
# `enable_thinking` for each type of thinking; None is the template's default.
_THINKING = {"enabled": True, "disabled": False, "adaptive": None}


class Tool(MarkableBlock):
    """A tool that the client runs. Anthropic's server tools are refused."""

    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = Field(default=None, json_schema_extra={"enum": ["custom", None]})


class ToolChoice(RequestBody):
    """Whether tools may be called: ``auto`` or ``none``."""

    type: str = Field(json_schema_extra={"enum": ["auto", "none"]})


class Thinking(RequestBody):
    """Whether the model thinks before it answers. The budget has no effect."""

    type: str = Field(json_schema_extra={"enum": list(_THINKING)})
    budget_tokens: int | None = None


class OutputConfig(RequestBody):
    """The effort is passed to the template; a format is refused."""

    effort: str | None = None
    format: Any = Field(default=None, json_schema_extra=NOTHING)


class CountTokensRequest(ExtensionFields):
    """A request for the number of prompt tokens, without generation."""

    model: str
    messages: list[Message] = Field(min_length=1)
    system: BlockContent | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    # Only the values without effect are supported.
    mcp_servers: list[Any] | None = Field(default=None, json_schema_extra={"maxItems": 0})
    output_format: Any = Field(default=None, json_schema_extra=NOTHING)

    @field_validator("tools")
    @classmethod
    def _custom_only(cls, value: list[Tool] | None) -> list[Tool] | None:
        for number, tool in enumerate(value or []):
            if tool.type not in (None, "custom"):
                raise unsupported(
                    "tool {number} has the type '{type}'; only 'custom' is supported",
                    number=number,
                    type=tool.type[:60],
                )
            if tool.input_schema is None:
                raise unsupported("tool {number} has no input_schema", number=number)
        return value

    @field_validator("tool_choice")
    @classmethod
    def _free_choice(cls, value: ToolChoice | None) -> ToolChoice | None:
        if value is not None and value.type not in ("auto", "none"):
            raise unsupported(
                "a forced tool call ('{type}') is not supported; use 'auto' or 'none'",
                type=value.type[:60],
            )
        return value

    @field_validator("thinking")
    @classmethod
    def _known_thinking(cls, value: Thinking | None) -> Thinking | None:
        if value is not None and value.type not in _THINKING:
            raise unsupported(
                "thinking type '{type}' is not supported; use one of {supported}",
                type=value.type[:60],
                supported=", ".join(f"'{name}'" for name in _THINKING),
            )
        return value

    @field_validator("output_config")
    @classmethod
    def _text_only(cls, value: OutputConfig | None) -> OutputConfig | None:
        if value is not None and value.format is not None:
            raise unsupported("output_config.format is not supported; leave it out")
        return value

    @field_validator("mcp_servers", "output_format")
    @classmethod
    def _must_be_missing(cls, value: object) -> object:
        if value not in (None, []):
            raise unsupported("the field is not supported; leave it out")
        return value

    @model_validator(mode="after")
    def _marks_are_few(self) -> Self:
        contents = (self.system, *(message.content for message in self.messages))
        num_marks = sum(count_marks(content) for content in contents)
        num_marks += sum(tool.cache_control is not None for tool in self.tools or [])
        require_few_marks(num_marks, "cache_control")
        return self

    def conversation(self) -> Conversation:
        """Build the input of the prompt builder. An assistant's text at the end is continued.

        Raises:
            InvalidRequest: A block is not supported in its place.
        """
        effort = self.output_config.effort if self.output_config is not None else None
        last = self.messages[-1]
        has_calls = not isinstance(last.content, str) and any(
            isinstance(block, ToolUseBlock) for block in last.content
        )
        marked = chat_messages(self.system, self.messages)
        conversation = self.build_conversation(
            [item.message for item in marked],
            [_as_function(tool) for tool in self.tools or []],
            effort=effort,
            default_thinking=_THINKING[self.thinking.type] if self.thinking is not None else None,
            continue_final_message=last.role == "assistant" and not has_calls,
        )
        return replace(
            conversation,
            marked_messages=frozenset(i for i, item in enumerate(marked) if item.is_marked),
            marked_texts=frozenset(
                (i, at) for i, item in enumerate(marked) for at in item.marked_at
            ),
            marks_tools=any(tool.cache_control is not None for tool in self.tools or []),
        )


class MessagesRequest(CountTokensRequest, SamplingFields):
    """A request for the next message. A null field counts as missing."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[StopString] | None = Field(default=None, max_length=MAX_STOP_STRINGS)
    stream: bool | None = None

    def params(self, defaults: SamplingParams) -> GenerationParams:
        """Build the parameters of the generation; missing sampling fields take ``defaults``.

        Raises:
            InvalidRequest: A block is not supported in its place.
        """
        return GenerationParams(
            conversation=self.conversation(),
            sampling=self.sampling(defaults),
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            cache_policy=self.cache_policy,
            parses_tool_calls=self.tool_choice is None or self.tool_choice.type != "none",
            is_streamed=bool(self.stream),
        )


def _as_function(tool: Tool) -> dict[str, Any]:
    """Convert a tool to a chat function, with the key order of chat clients."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}
