"""Builds the prompt of a conversation: the only place where a chat becomes tokens.

Owns the pipeline: validate, escape special tokens, splice generated tool calls, render, encode,
find the boundary and the heads. Of past conversations it keeps only the generated text of tool
calls; the tokenizer's cache and the echo index have their own owners.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.echo.generated_texts import (
    GeneratedAnswer,
    GeneratedTextIndex,
    canonical,
    digests,
)
from kvreg_service.chat.echo.text_splice import TextSplice
from kvreg_service.chat.messages import Message, normalize_messages
from kvreg_service.chat.output.reasoning import THINK_CLOSE, THINK_OPEN
from kvreg_service.chat.prompt.boundary import Boundary, find_boundary
from kvreg_service.chat.prompt.encoded_text import EncodedText, TextEncoder
from kvreg_service.chat.prompt.heads import find_heads
from kvreg_service.chat.prompt.special_token_escaper import SpecialTokenEscaper
from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.chat.tool_calls.parser import parse_answer
from kvreg_service.core.errors import ContextTooLong, InvalidRequest
from kvreg_service.core.labels import Tail
from kvreg_service.core.requests.identity import DEFAULT_TENANT
from kvreg_service.core.requests.request import Head

_Render = Callable[[Sequence[Message], bool], str]

# Placed at the end of the message to continue; the last occurrence is always this one. Its trailing
# space shows whether the template trims messages.
_CONTINUE_TAG = "\ufdd1continue\ufdd1 "


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt as the engine takes it: token ids (typecode ``i``) and facts about them.

    ``tail`` is the role of the last message. With ``starts_in_reasoning`` the prompt ends inside an
    open think block. ``history`` is the digest by which ``PromptBuilder.remember`` identifies the
    conversation; it is None when the answer cannot contain tool calls.
    """

    token_ids: array[int]
    boundary: Boundary
    tail: Tail
    starts_in_reasoning: bool
    is_continuation: bool = False
    """The answer continues the assistant message at the end of the conversation."""
    history: bytes | None = None
    heads: tuple[Head, ...] = ()
    """The prefixes that other conversations may share, the shortest first."""
    tenant: str = DEFAULT_TENANT
    """The tenant that sent the request."""
    session: bytes = b""
    """A digest of the messages up to and including the first user message."""


@dataclass(frozen=True)
class _Rendered:
    """A rendered conversation, and the function that renders further messages the same way."""

    messages: list[Message]
    text: str
    render: _Render
    history: bytes | None
    session: bytes


class PromptBuilder:
    """Builds prompts for one model. Thread-safe.

    With ``max_context_tokens``, a text that must exceed it is rejected before it is encoded:
    encoding many megabytes takes minutes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        echo: EchoIndex,
        *,
        max_context_tokens: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_context_tokens = max_context_tokens
        self._template = template
        self._generated = GeneratedTextIndex()
        self._escaper = SpecialTokenEscaper(
            special_tokens=tokenizer.special_tokens, added_tokens=tokenizer.added_tokens
        )
        self._encoder = TextEncoder(tokenizer, self._escaper, echo)

    def build(self, conversation: Conversation, tenant: str = DEFAULT_TENANT) -> ChatPrompt:
        """Return the prompt for the next answer, or for the rest of the last one.

        It does not depend on what other tenants have sent.

        Raises:
            InvalidRequest: A message has a shape that cannot be rendered (``param`` is its path),
                the template rejects the conversation, or its last message cannot be continued.
            ContextTooLong: The text must exceed ``max_context_tokens``.
        """
        rendered = self._render(conversation, tenant)
        messages, text = rendered.messages, rendered.text
        self._reject_too_long(text)
        encoded = self._encoder.encode(text, tenant)
        if not encoded.token_ids:
            raise InvalidRequest("the conversation renders to an empty prompt", param="messages")

        def render(history: Sequence[Message]) -> str:
            return rendered.render(history, True)

        def encode(probe: str) -> EncodedText:
            return self._encoder.encode(probe, tenant, like=encoded)

        is_continued = conversation.continue_final_message
        boundary = find_boundary(
            messages,
            encoded.token_ids,
            lambda history: encode(render(history)).token_ids,
            is_continued=is_continued,
        )
        return ChatPrompt(
            token_ids=encoded.token_ids,
            boundary=boundary,
            tail=Tail(str(messages[-1]["role"])),
            starts_in_reasoning=self._is_reasoning_open(text, is_continued),
            is_continuation=is_continued,
            history=None if is_continued else rendered.history,
            heads=find_heads(conversation, messages, encoded, render, encode, self._escaper.escape),
            tenant=tenant,
            session=rendered.session,
        )

    def count(self, conversation: Conversation, tenant: str = DEFAULT_TENANT) -> int:
        """Return the number of tokens of the prompt that ``build`` would return.

        Raises:
            InvalidRequest: See ``build``.
            ContextTooLong: See ``build``.
        """
        rendered = self._render(conversation, tenant)
        self._reject_too_long(rendered.text)
        return len(self._encoder.encode(rendered.text, tenant).token_ids)

    def remember(self, prompt: ChatPrompt, answer: GeneratedAnswer) -> None:
        """Record the text that the model generated, for prompts in which the client echoes it."""
        if prompt.history is not None:
            self._generated.record(prompt.tenant, prompt.history, answer)

    def _render(self, conversation: Conversation, tenant: str) -> _Rendered:
        try:
            return self._render_messages(conversation, tenant)
        except RecursionError:
            raise InvalidRequest(
                "the conversation holds a value that is nested too deeply", param="messages"
            ) from None

    def _render_messages(self, conversation: Conversation, tenant: str) -> _Rendered:
        normalized = normalize_messages(conversation.messages)
        messages = self._escaper.escape_messages(normalized)
        render = self._renderer(conversation)
        chain = digests(normalized) if conversation.tools else []
        # A message that is continued stays as the template renders it, so that it can be left open.
        num_closed = len(normalized) - (1 if conversation.continue_final_message else 0)
        generated = self._generated_texts(normalized, chain[:num_closed], tenant)
        splice = TextSplice(generated).verified(
            messages,
            lambda plain: render(plain, True),
            lambda text, i: self._parses_to(text, normalized[i], conversation),
        )
        messages = splice.mark(messages)

        def render_spliced(history: Sequence[Message], add_generation_prompt: bool) -> str:
            return splice.fill(render(history, add_generation_prompt))

        if conversation.continue_final_message:
            text = _render_continued(messages, render_spliced)
        else:
            text = render_spliced(messages, True)
        history = chain[-1] if chain else None
        return _Rendered(messages, text, render_spliced, history, _session_of(normalized))

    def _generated_texts(
        self, messages: Sequence[Message], chain: Sequence[bytes], tenant: str
    ) -> dict[int, str]:
        """Return the recorded texts of those messages that contain tool calls."""
        found = {
            i: self._generated.find(tenant, digest)
            for i, digest in enumerate(chain)
            if messages[i]["role"] == "assistant" and "tool_calls" in messages[i]
        }
        return {i: self._escaper.escape(text) for i, text in found.items() if text is not None}

    def _parses_to(self, text: str, message: Message, conversation: Conversation) -> bool:
        """Whether a rendered answer parses to the message that it was rendered from."""
        plain = self._escaper.unescape(text)
        content, calls = parse_answer(plain, conversation.tools or ())
        answer = GeneratedAnswer(content, calls, plain)
        return canonical(answer.as_message()) == canonical(message)

    def _renderer(self, conversation: Conversation) -> _Render:
        """Return the template bound to the tools and variables of the conversation."""
        for i, tool in enumerate(conversation.tools or ()):
            if not isinstance(tool, Mapping):
                raise InvalidRequest(f"tools[{i}] is not an object", param=f"tools[{i}]")
        tools = self._escaper.escape(list(conversation.tools or ()))
        variables = self._escaper.escape(conversation.template_variables)

        def render(messages: Sequence[Message], add_generation_prompt: bool) -> str:
            return self._template.render(
                messages,
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                variables=variables,
            )

        return render

    def _reject_too_long(self, text: str) -> None:
        limit = self._max_context_tokens
        least = self._tokenizer.least_tokens(text)
        if limit is not None and least >= limit:
            raise ContextTooLong(least, limit, is_at_least=True)

    def _is_reasoning_open(self, text: str, is_continued: bool) -> bool:
        if not is_continued:
            return text.rstrip().endswith(THINK_OPEN)
        # The message that is continued begins after the last special token.
        start = max((text.rfind(token) for token in self._tokenizer.special_tokens), default=0)
        return text.rfind(THINK_OPEN, max(start, 0)) > text.rfind(THINK_CLOSE, max(start, 0))


def _session_of(messages: Sequence[Message]) -> bytes:
    is_user = [message["role"] == "user" for message in messages]
    end = is_user.index(True) + 1 if True in is_user else 1
    return digests(messages[:end])[-1]


def _render_continued(messages: Sequence[Message], render: _Render) -> str:
    """Render with the last message open: the text is cut right after its content."""
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
