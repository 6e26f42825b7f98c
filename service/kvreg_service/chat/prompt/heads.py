"""Finds the heads of a prompt: the prefixes that other conversations are sure to repeat.

Many conversations share tools and system messages, and a client can mark further positions. As in
`boundary`, a head is found by rendering: the prefix is rendered with different placeholder messages
after it, and what all renderings have in common is the head. This works for any template. Which
heads are kept is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.messages import Message
from kvreg_service.chat.prompt.boundary import ANSWERS, QUESTIONS
from kvreg_service.chat.prompt.common_prefix import common_prefix_len
from kvreg_service.chat.prompt.encoded_text import EncodedText
from kvreg_service.core.errors import InvalidRequest
from kvreg_service.core.requests.request import Head

# The number of `cache_control` marks that Anthropic allows; each costs two renderings.
MAX_MARKED_HEADS = 4


def find_heads(
    conversation: Conversation,
    messages: Sequence[Message],
    prompt: EncodedText,
    render: Callable[[Sequence[Message]], str],
    encode: Callable[[str], EncodedText],
    escape: Callable[[str], str],
) -> tuple[Head, ...]:
    """Return the heads of a prompt, the shortest first. Each leaves at least one token to compute.

    The first head needs no mark: it covers the tools, the leading system messages and whatever else
    the template renders before the first user message, a few tokens if there are neither. A mark on
    the tools or on a leading system message marks this head. Every other mark adds a head, except
    one after the last message, where the stable boundary of the prompt lies. If there are too many
    marks, the last ``MAX_MARKED_HEADS`` are used. Heads of equal length are merged. There is no
    head where the template rejects the placeholder messages.

    ``messages`` are those of the conversation, escaped as ``render`` expects them; ``escape``
    escapes a text in the same way, and ``encode`` encodes a rendered text.
    """
    num_leading = sum(1 for _ in takewhile(_is_system, messages))
    marks = sorted(conversation.marked_messages)
    is_marked = conversation.marks_tools or any(0 <= i < num_leading for i in marks)
    marked = [(i, None) for i in marks if num_leading <= i < len(messages) - 1]
    inside = [mark for mark in conversation.marked_texts if num_leading <= mark[0] < len(messages)]
    # The end of a message comes after every position inside it.
    places = sorted([*marked, *inside], key=lambda mark: (mark[0], mark[1] is None, mark[1] or 0))
    probes_by_end = [(list(_continuations(messages[:num_leading])), is_marked)]
    for i, num_characters in places[-MAX_MARKED_HEADS:]:
        if num_characters is None:
            probes = list(_continuations(messages[: i + 1]))
        else:
            beginning = escape(str(conversation.messages[i].get("content", ""))[:num_characters])
            probes = list(_variants(messages[: i + 1], beginning))
        probes_by_end.append((probes, True))
    heads: dict[int, bool] = {}
    for probes, is_marked in probes_by_end:
        num_tokens = _shared_len(prompt, probes, render, encode)
        if num_tokens > 0:
            heads[num_tokens] = is_marked or heads.get(num_tokens, False)
    return tuple(Head(num_tokens, is_marked) for num_tokens, is_marked in sorted(heads.items()))


def _is_system(message: Message) -> bool:
    return message["role"] == "system"


def _continuations(history: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the history followed by placeholder messages, the last of them a user message.

    The roles are those that may follow. The variants also differ in their number of messages, as
    some templates depend on it, or on the last message.
    """
    role = history[-1]["role"] if history else "system"
    rounds: list[Message] = []
    for answer, question in zip(ANSWERS, QUESTIONS, strict=True):
        assistant: Message = {"role": "assistant", "content": answer}
        user: Message = {"role": "user", "content": question}
        following: list[Message] = []
        if role == "assistant":
            following += _results(history[-1], answer)
        if following or role in ("user", "tool"):
            following.append(assistant)
        yield [*history, *following, user, *rounds]
        rounds = [assistant, user]


def _variants(history: Sequence[Message], beginning: str) -> Iterator[list[Message]]:
    """Yield the history with its last message cut to ``beginning``, followed by a placeholder.

    Yields nothing if the escaped content of the message does not start with ``beginning``.
    """
    last = history[-1]
    if beginning and str(last.get("content", "")).startswith(beginning):
        for answer in ANSWERS:
            yield [*history[:-1], {**last, "content": f"{beginning}{answer}"}]


def _results(message: Message, content: str) -> Iterator[Message]:
    """Yield one tool result for each tool call of an assistant message."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        result: Message = {"role": "tool", "content": content, "name": call["function"]["name"]}
        yield {**result, "tool_call_id": call["id"]} if "id" in call else result


def _shared_len(
    prompt: EncodedText,
    probes: Sequence[Sequence[Message]],
    render: Callable[[Sequence[Message]], str],
    encode: Callable[[str], EncodedText],
) -> int:
    """Return how many leading tokens of the prompt all probes share, whatever text follows."""
    if not probes:
        return 0
    num_characters = len(prompt.text)
    for probe in probes:
        try:
            text = render(probe)
        except InvalidRequest:
            return 0
        num_characters = min(num_characters, common_prefix_len(prompt.text, text))
    shared = encode(prompt.text[:num_characters])
    length = len(shared.token_ids)
    if length not in shared.token_cuts[-1:]:
        # The last token may merge with the text that follows, unless it is an added token.
        length -= 1
    # At least one token must be computed.
    length = min(length, len(prompt.token_ids) - 1)
    return min(length, common_prefix_len(prompt.token_ids, shared.token_ids))
