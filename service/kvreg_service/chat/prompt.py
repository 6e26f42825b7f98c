"""A conversation to the prompt of a model. The one place where chat becomes tokens.

Owns the sequence validate, protect, render, encode, probe. It keeps nothing about conversations;
what is remembered lies in the tokenizer's cache and in the echo index.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from kvreg_service.chat.boundary import Boundary, find_boundary
from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo import EchoIndex
from kvreg_service.chat.encoded_text import TextEncoder
from kvreg_service.chat.literals import Literals
from kvreg_service.chat.messages import Message, normalize_messages
from kvreg_service.chat.reasoning import THINK_CLOSE, THINK_OPEN
from kvreg_service.chat.template import ChatTemplate
from kvreg_service.chat.tokenizer import Tokenizer
from kvreg_service.core.errors import InvalidRequest

_Render = Callable[[Sequence[Message], bool], str]

Tail = Literal["user", "assistant", "tool", "system"]

# Marks the end of the message to continue; the last occurrence is always ours. The space at its
# end tells whether the template trims messages.
_CONTINUE_TAG = "\ufdd1continue\ufdd1 "


@dataclass(frozen=True)
class ChatPrompt:
    """What the engine needs to know of a conversation: ids of typecode ``i`` and four facts.

    ``tail`` is the role of the last message. ``starts_in_reasoning`` says that the answer begins
    inside a think block which the prompt opened.
    """

    token_ids: array[int]
    boundary: Boundary
    tail: Tail
    starts_in_reasoning: bool
    is_continuation: bool = False
    """The answer goes on inside the assistant message that ends the conversation."""


class PromptBuilder:
    """Builds prompts for one model. Safe to share by threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, echo: EchoIndex) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._literals = Literals(
            special_tokens=tokenizer.special_tokens, added_tokens=tokenizer.added_tokens
        )
        self._encoder = TextEncoder(tokenizer, self._literals, echo)

    def build(self, conversation: Conversation) -> ChatPrompt:
        """The prompt that asks for the next answer, or for the rest of the last one.

        Raises:
            InvalidRequest: a message has a shape that no template can render (``param`` names
                the place), the template refuses the conversation, or nothing can be continued.
        """
        messages = self._literals.protect_messages(normalize_messages(conversation.messages))
        render = self._renderer(conversation)
        is_continued = conversation.continue_final_message
        text = _render_continued(messages, render) if is_continued else render(messages, True)
        encoded = self._encoder.encode(text)
        if not encoded.token_ids:
            raise InvalidRequest("the conversation renders to an empty prompt", param="messages")

        def encode(history: Sequence[Message]) -> array[int]:
            return self._encoder.encode(render(history, True), like=encoded).token_ids

        boundary = find_boundary(messages, encoded.token_ids, encode, is_continued=is_continued)
        return ChatPrompt(
            token_ids=encoded.token_ids,
            boundary=boundary,
            tail=cast(Tail, messages[-1]["role"]),
            starts_in_reasoning=self._is_reasoning_open(text, is_continued),
            is_continuation=is_continued,
        )

    def _renderer(self, conversation: Conversation) -> _Render:
        """The template with everything but the messages filled in."""
        for i, tool in enumerate(conversation.tools or ()):
            if not isinstance(tool, Mapping):
                raise InvalidRequest(f"tools[{i}] is not an object", param=f"tools[{i}]")
        tools = self._literals.protect(list(conversation.tools or ()))
        variables = self._literals.protect(conversation.template_variables)

        def render(messages: Sequence[Message], add_generation_prompt: bool) -> str:
            return self._template.render(
                messages,
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                variables=variables,
            )

        return render

    def _is_reasoning_open(self, text: str, is_continued: bool) -> bool:
        if not is_continued:
            return text.rstrip().endswith(THINK_OPEN)
        # Only what follows the last control token is the message that is continued.
        start = max((text.rfind(token) for token in self._tokenizer.special_tokens), default=0)
        return text.rfind(THINK_OPEN, max(start, 0)) > text.rfind(THINK_CLOSE, max(start, 0))


def _render_continued(messages: Sequence[Message], render: _Render) -> str:
    """Render with the last message left open: cut right behind its content."""
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        raise InvalidRequest(
            "continue_final_message needs an assistant message without tool calls at the end",
            param="continue_final_message",
        )
    tagged = {**last, "content": f"{last['content']}{_CONTINUE_TAG}"}
    text = render([*messages[:-1], tagged], False)
    end = text.rfind(_CONTINUE_TAG.rstrip())
    if end < 0:
        raise InvalidRequest(
            "the chat template does not render the message that is to be continued",
            param="continue_final_message",
        )
    is_trimmed = not text.startswith(_CONTINUE_TAG, end)
    return text[:end].rstrip() if is_trimmed else text[:end]
