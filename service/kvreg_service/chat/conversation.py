"""What a client asks to be continued: messages, tools and the switches that shape the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conversation:
    """The messages as the client sent them; ``PromptBuilder`` validates them.

    ``enable_thinking`` and ``preserve_thinking`` reach the template only when they are set, so
    that each template keeps its own default; ``variables`` are further template variables. With
    ``continue_final_message`` the last message, an assistant's, is left open and continued. The
    client asks for an anchor behind the messages whose indices are in ``marked_messages``, with
    ``marks_tools`` behind the tools, and inside of messages behind the first so many characters of
    the content, as pairs of index and number in ``marked_texts``.
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
        """Everything that the template may read beside the messages and the tools."""
        switches = {
            "enable_thinking": self.enable_thinking,
            "preserve_thinking": self.preserve_thinking,
        }
        return {**self.variables, **{k: v for k, v in switches.items() if v is not None}}
