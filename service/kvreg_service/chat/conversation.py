"""The conversation of a request: messages, tools and the options that shape the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conversation:
    """The messages as the client sent them; ``PromptBuilder`` validates them.

    ``enable_thinking`` and ``preserve_thinking`` reach the template only when they are set, so
    each template keeps its own default; ``variables`` are further template variables. With
    ``continue_final_message`` the last message, which must be an assistant's, stays open and is
    continued.

    Anchors are requested after each message whose index is in ``marked_messages``, after the tools
    with ``marks_tools``, and inside a message for each pair of ``marked_texts``: the index of the
    message and the number of characters of its content before the anchor.
    """

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    continue_final_message: bool = False
    marked_messages: frozenset[int] = frozenset()
    marks_tools: bool = False
    marked_texts: frozenset[tuple[int, int]] = frozenset()

    @property
    def template_variables(self) -> dict[str, object]:
        """The template variables besides the messages and the tools."""
        switches = {
            "enable_thinking": self.enable_thinking,
            "preserve_thinking": self.preserve_thinking,
        }
        return {**self.variables, **{k: v for k, v in switches.items() if v is not None}}
