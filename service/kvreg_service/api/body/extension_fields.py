"""The body fields of kvreg that extend both APIs: thinking, templates, reuse and retention."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from kvreg_service.api.body.extension_headers import MAX_PRIORITY, MAX_TTL_S, ExtensionHeaders
from kvreg_service.api.body.request_body import RequestBody, unsupported
from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.requests.request import CachePolicy

# Anthropic's limit. Each mark costs one more tokenisation of the conversation up to it.
MAX_MARKS = 4
_THINKING_SWITCHES = ("enable_thinking", "preserve_thinking")


class ExtensionFields(RequestBody):
    """kvreg's own fields. They take precedence over the same names in ``chat_template_kwargs``."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    retain_prefix: bool | None = None
    # Clients of NInfer's server send it; it means `retain_prefix: false`.
    prompt_cache_read_only: bool | None = None
    # The name and the meaning are those of llama.cpp's server.
    cache_prompt: bool | None = None
    cache_ttl_s: float | None = Field(default=None, gt=0, le=MAX_TTL_S)
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)

    @field_validator("chat_template_kwargs")
    @classmethod
    def _switches_are_flags(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in _THINKING_SWITCHES:
            flag = (value or {}).get(name)
            if not isinstance(flag, bool | None):
                raise unsupported(
                    "{name} must be true, false or null (got a {type})",
                    name=name,
                    type=type(flag).__name__,
                )
        return value

    @model_validator(mode="after")
    def _retention_is_consistent(self) -> Self:
        if self.retain_prefix and self.prompt_cache_read_only:
            raise unsupported(
                "retain_prefix = true and prompt_cache_read_only = true contradict each other"
            )
        return self

    @property
    def cache_policy(self) -> CachePolicy:
        """How the request may use the prefix cache."""
        return CachePolicy(
            retain=self.retain_prefix is not False and not self.prompt_cache_read_only,
            may_reuse=self.cache_prompt is not False,
            priority=self.priority or 0,
            ttl_s=self.cache_ttl_s,
        )

    def with_headers(self, headers: ExtensionHeaders) -> Self:
        """Return a copy whose missing fields are filled from the headers."""
        values_by_header = {
            "retain_prefix": (self.retain_prefix, self.prompt_cache_read_only),
            "cache_prompt": (self.cache_prompt,),
            "cache_ttl_s": (self.cache_ttl_s,),
            "priority": (self.priority,),
        }
        missing = [
            name for name, values in values_by_header.items() if all(x is None for x in values)
        ]
        return self.model_copy(update={name: getattr(headers, name) for name in missing})

    def build_conversation(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        effort: str | None,
        default_thinking: bool | None,
        continue_final_message: bool,
    ) -> Conversation:
        """Build the input of the prompt builder.

        ``effort`` becomes the template variable ``reasoning_effort``. ``default_thinking`` applies
        if ``enable_thinking`` is set neither as a field nor in ``chat_template_kwargs``.
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


def require_few_marks(num_marks: int, name: str) -> None:
    """Refuse a body with more than ``MAX_MARKS`` marks. For use in a validator."""
    if num_marks > MAX_MARKS:
        raise unsupported(
            "{name} is set in {count} places; at most {limit} are supported",
            name=name,
            count=num_marks,
            limit=MAX_MARKS,
        )
