"""The fields of a body that no cloud service has: thinking, templates and retention."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from kvreg_service.api.request_body import RequestBody, unsupported
from kvreg_service.chat.conversation import Conversation

_MAX_TTL_S = 30 * 24 * 3600.0
_THINKING_SWITCHES = ("enable_thinking", "preserve_thinking")


class ExtensionFields(RequestBody):
    """What kvreg adds to either API. A field beside ``chat_template_kwargs`` wins over it."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    retain_prefix: bool | None = None
    prompt_cache_read_only: bool | None = None
    cache_ttl_s: float | None = Field(default=None, gt=0, le=_MAX_TTL_S)
    priority: int | None = Field(default=None, ge=-1000, le=1000)

    @field_validator("chat_template_kwargs")
    @classmethod
    def _switches_are_flags(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in _THINKING_SWITCHES:
            if not isinstance((value or {}).get(name), bool | None):
                raise unsupported("'{name}' is neither true nor false", name=name)
        return value

    @model_validator(mode="after")
    def _retention_is_consistent(self) -> Self:
        if self.retain_prefix and self.prompt_cache_read_only:
            raise unsupported(
                "retain_prefix = true and prompt_cache_read_only = true contradict each other"
            )
        return self

    @property
    def retains(self) -> bool:
        """Whether the finished sequence may be kept for a next turn."""
        return self.retain_prefix is not False and not self.prompt_cache_read_only

    def converse(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        effort: str | None,
        default_thinking: bool | None,
        continue_final_message: bool,
    ) -> Conversation:
        """Build what the prompt is made of.

        ``effort`` becomes the template variable ``reasoning_effort``; ``default_thinking`` counts
        where neither switch is set.
        """
        variables = dict(self.chat_template_kwargs or {})
        kwargs_thinking, kwargs_preserve = (variables.pop(x, None) for x in _THINKING_SWITCHES)
        if effort is not None:
            variables["reasoning_effort"] = effort
        return Conversation(
            messages=messages,
            tools=tools or None,
            enable_thinking=_first_set(self.enable_thinking, kwargs_thinking, default_thinking),
            preserve_thinking=_first_set(self.preserve_thinking, kwargs_preserve),
            variables=variables,
            continue_final_message=continue_final_message,
        )


def _first_set(*switches: bool | None) -> bool | None:
    return next((switch for switch in switches if switch is not None), None)
