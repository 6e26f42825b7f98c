"""A conversation to the prompt of a model. The one place where chat becomes tokens.

Owns the sequence validate, protect, respell, render, encode, probe. It keeps nothing about
conversations but how tool calls were spelled; what else is remembered lies in the tokenizer's
cache and in the echo index.
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
    digests,
    meaning,
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
from kvreg_service.core.identity import DEFAULT_TENANT
from kvreg_service.core.labels import Tail
from kvreg_service.core.request import Head

_Render = Callable[[Sequence[Message], bool], str]

# Marks the end of the message to continue; the last occurrence is always ours. The space at its
# end tells whether the template trims messages.
_CONTINUE_TAG = "\ufdd1continue\ufdd1 "


@dataclass(frozen=True)
class ChatPrompt:
    """What the engine needs to know of a conversation: ids of typecode ``i`` and some facts.

    ``tail`` is the role of the last message. ``starts_in_reasoning`` says that the answer begins
    inside a think block which the prompt opened. ``history`` identifies the conversation to
    ``PromptBuilder.remember``, and is None when its answer cannot hold tool calls.
    """

    token_ids: array[int]
    boundary: Boundary
    tail: Tail
    starts_in_reasoning: bool
    is_continuation: bool = False
    """The answer goes on inside the assistant message that ends the conversation."""
    history: bytes | None = None
    heads: tuple[Head, ...] = ()
    """The beginnings that other conversations may share, the shortest first."""
    tenant: str = DEFAULT_TENANT
    """Whose conversation it is."""
    session: bytes = b""
    """A digest of how the conversation begins: all messages up to the first of a user."""


@dataclass(frozen=True)
class _Rendered:
    """A conversation as text, and what it takes to render further messages alike."""

    messages: list[Message]
    text: str
    render: _Render
    history: bytes | None
    session: bytes


class PromptBuilder:
    """Builds prompts for one model. Safe to share by threads.

    With ``max_context_tokens`` a text that surely exceeds it is refused before it is encoded, which
    for many megabytes would take minutes.
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
        self._spellings = GeneratedTextIndex()
        self._escaper = SpecialTokenEscaper(
            special_tokens=tokenizer.special_tokens, added_tokens=tokenizer.added_tokens
        )
        self._encoder = TextEncoder(tokenizer, self._escaper, echo)

    def build(self, conversation: Conversation, tenant: str = DEFAULT_TENANT) -> ChatPrompt:
        """The prompt that asks for the next answer, or for the rest of the last one.

        Nothing that is remembered of other tenants has a part in it.

        Raises:
            InvalidRequest: a message has a shape that no template can render (``param`` names
                the place), the template refuses the conversation, or nothing can be continued.
        """
        rendered = self._render_contained(conversation, tenant)
        messages, text = rendered.messages, rendered.text
        self._refuse_hopeless(text)
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
        """The number of tokens that ``build`` would give; nothing is probed or remembered.

        Raises:
            InvalidRequest: as ``build``.
        """
        rendered = self._render_contained(conversation, tenant)
        self._refuse_hopeless(rendered.text)
        return len(self._encoder.encode(rendered.text, tenant).token_ids)

    def remember(self, prompt: ChatPrompt, answer: GeneratedAnswer) -> None:
        """Note how the model spelled its answer, for the prompts in which the client echoes it."""
        if prompt.history is not None:
            self._spellings.record(prompt.tenant, prompt.history, answer)

    def _render_contained(self, conversation: Conversation, tenant: str) -> _Rendered:
        try:
            return self._render(conversation, tenant)
        except RecursionError:
            raise InvalidRequest(
                "the conversation holds a value that is nested too deeply", param="messages"
            ) from None

    def _render(self, conversation: Conversation, tenant: str) -> _Rendered:
        said = normalize_messages(conversation.messages)
        messages = self._escaper.escape_messages(said)
        render = self._renderer(conversation)
        chain = digests(said) if conversation.tools else []
        # What is continued keeps the form in which it can be left open.
        num_closed = len(said) - 1 if conversation.continue_final_message else len(said)
        respelling = TextSplice(self._known_spellings(said, chain[:num_closed], tenant)).confirmed(
            messages,
            lambda plain: render(plain, True),
            lambda text, i: self._reads_as(text, said[i], conversation),
        )
        messages = respelling.mark(messages)

        def render_respelled(history: Sequence[Message], add_generation_prompt: bool) -> str:
            return respelling.fill(render(history, add_generation_prompt))

        if conversation.continue_final_message:
            text = _render_continued(messages, render_respelled)
        else:
            text = render_respelled(messages, True)
        history = chain[-1] if chain else None
        return _Rendered(messages, text, render_respelled, history, _session_of(said))

    def _known_spellings(
        self, messages: Sequence[Message], chain: Sequence[bytes], tenant: str
    ) -> dict[int, str]:
        """How the model spelled the calls in these messages, as far as it is remembered."""
        found = {
            i: self._spellings.find(tenant, digest)
            for i, digest in enumerate(chain)
            if messages[i]["role"] == "assistant" and "tool_calls" in messages[i]
        }
        return {i: self._escaper.escape(text) for i, text in found.items() if text is not None}

    def _reads_as(self, text: str, message: Message, conversation: Conversation) -> bool:
        """Whether a rendered answer is parsed to the message that it was rendered from."""
        spelling = self._escaper.unescape(text)
        content, calls = parse_answer(spelling, conversation.tools or ())
        answer = GeneratedAnswer(content, calls, spelling)
        return meaning(answer.as_message()) == meaning(message)

    def _renderer(self, conversation: Conversation) -> _Render:
        """The template with everything but the messages filled in."""
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

    def _refuse_hopeless(self, text: str) -> None:
        limit = self._max_context_tokens
        least = self._tokenizer.least_tokens(text)
        if limit is not None and least >= limit:
            raise ContextTooLong(least, limit, is_at_least=True)

    def _is_reasoning_open(self, text: str, is_continued: bool) -> bool:
        if not is_continued:
            return text.rstrip().endswith(THINK_OPEN)
        # Only what follows the last control token is the message that is continued.
        start = max((text.rfind(token) for token in self._tokenizer.special_tokens), default=0)
        return text.rfind(THINK_OPEN, max(start, 0)) > text.rfind(THINK_CLOSE, max(start, 0))


def _session_of(messages: Sequence[Message]) -> bytes:
    is_user = [message["role"] == "user" for message in messages]
    end = is_user.index(True) + 1 if True in is_user else 1
    return digests(messages[:end])[-1]


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
