"""The bodies of ``POST /v1/messages`` and its ``count_tokens``: every field, with its limits.

Owns which fields are used, ignored or refused. ``IGNORED_FIELDS`` names those of Anthropic that
have no effect here; any other unknown field is ignored as well. What cannot be done is refused
with the field, its value and what is supported, never silently done otherwise.
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
from kvreg_service.core.sampling_params import SamplingParams

# Accepted from any client and without effect. The `cache_control` of the body itself asks for no
# more than what is done anyway: the whole conversation is kept.
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
# What each kind of thinking asks of the template; None leaves it the template's own choice.
_THINKING = {"enabled": True, "disabled": False, "adaptive": None}


class Tool(MarkableBlock):
    """A tool that the client runs, or one of Anthropic's own, which are refused."""

    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = Field(default=None, json_schema_extra={"enum": ["custom", None]})


class ToolChoice(RequestBody):
    """Whether tools may be called: ``auto`` or ``none``."""

    type: str = Field(json_schema_extra={"enum": ["auto", "none"]})


class Thinking(RequestBody):
    """Whether the model thinks before it answers. A budget has no effect."""

    type: str = Field(json_schema_extra={"enum": list(_THINKING)})
    budget_tokens: int | None = None


class OutputConfig(RequestBody):
    """The effort is passed to the template; a format is refused."""

    effort: str | None = None
    format: Any = Field(default=None, json_schema_extra=NOTHING)


class CountTokensRequest(ExtensionFields):
    """A conversation of which only the length is asked for."""

    model: str
    messages: list[Message] = Field(min_length=1)
    system: BlockContent | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    # Known only to be refused when they ask for what is not served.
    mcp_servers: list[Any] | None = Field(default=None, json_schema_extra={"maxItems": 0})
    output_format: Any = Field(default=None, json_schema_extra=NOTHING)

    @field_validator("tools")
    @classmethod
    def _custom_only(cls, value: list[Tool] | None) -> list[Tool] | None:
        for number, tool in enumerate(value or []):
            if tool.type not in (None, "custom"):
                raise unsupported(
                    "tool {number} is of type '{type}'; only tools of the client's own are served",
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
                "a forced tool call ('{type}') is not served; 'auto' and 'none' are",
                type=value.type[:60],
            )
        return value

    @field_validator("thinking")
    @classmethod
    def _known_thinking(cls, value: Thinking | None) -> Thinking | None:
        if value is not None and value.type not in _THINKING:
            raise unsupported(
                "thinking of type '{type}' is not served; {served} are",
                type=value.type[:60],
                served=", ".join(f"'{name}'" for name in _THINKING),
            )
        return value

    @field_validator("output_config")
    @classmethod
    def _text_only(cls, value: OutputConfig | None) -> OutputConfig | None:
        if value is not None and value.format is not None:
            raise unsupported("output_config.format is not served; leave it out")
        return value

    @field_validator("mcp_servers", "output_format")
    @classmethod
    def _not_served(cls, value: object) -> object:
        if value not in (None, []):
            raise unsupported("this is not served; leave it out")
        return value

    @model_validator(mode="after")
    def _marks_are_few(self) -> Self:
        contents = (self.system, *(message.content for message in self.messages))
        num_marks = sum(count_marks(content) for content in contents)
        num_marks += sum(tool.cache_control is not None for tool in self.tools or [])
        require_few_marks(num_marks, "cache_control")
        return self

    def conversation(self) -> Conversation:
        """Build what the prompt is made of. An assistant's text at the end is gone on with.

        Raises:
            InvalidRequest: A block is of a kind that is not served in its place.
        """
        effort = self.output_config.effort if self.output_config is not None else None
        last = self.messages[-1]
        has_calls = not isinstance(last.content, str) and any(
            isinstance(block, ToolUseBlock) for block in last.content
        )
        said = chat_messages(self.system, self.messages)
        conversation = self.converse(
            [one.message for one in said],
            [_as_function(tool) for tool in self.tools or []],
            effort=effort,
            default_thinking=_THINKING[self.thinking.type] if self.thinking is not None else None,
            continue_final_message=last.role == "assistant" and not has_calls,
        )
        return replace(
            conversation,
            marked_messages=frozenset(i for i, one in enumerate(said) if one.is_marked),
            marked_texts=frozenset((i, at) for i, one in enumerate(said) for at in one.marked_at),
            marks_tools=any(tool.cache_control is not None for tool in self.tools or []),
        )


class MessagesRequest(CountTokensRequest, SamplingFields):
    """A request for the next message. A field that is null counts as missing."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[StopString] | None = Field(default=None, max_length=MAX_STOP_STRINGS)
    stream: bool | None = None

    def params(self, defaults: SamplingParams) -> GenerationParams:
        """Build the parameters of the generation; missing sampling fields take ``defaults``.

        Raises:
            InvalidRequest: A block is of a kind that is not served in its place.
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
    """The tool as a chat names it, its keys in the order in which clients of chats write them."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}
