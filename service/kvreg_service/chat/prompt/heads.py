"""Finds the beginnings of a prompt that other conversations are sure to repeat.

Many conversations begin alike, with the same tools and system messages, and a client can mark more
such places. As in `boundary` the template itself is asked: it renders the beginning followed by
invented messages, and what all renderings have in common is the head. It knows no template, and
does not decide which heads are kept.
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
from kvreg_service.core.request import Head

# What Anthropic's clients may set; each costs two renderings of the conversation up to it.
MAX_MARKED_HEADS = 4


def find_heads(
    conversation: Conversation,
    messages: Sequence[Message],
    prompt: EncodedText,
    render: Callable[[Sequence[Message]], str],
    encode: Callable[[str], EncodedText],
    escape: Callable[[str], str],
) -> tuple[Head, ...]:
    """The heads of a prompt, the shortest first; each leaves at least one token of it.

    One is found without being asked for: the tools, the leading system messages and whatever else
    the template puts before the first message of a user. Without tools and system messages these
    are a few tokens. A mark on the tools or on one of these messages marks this head. Every other
    mark adds one; a mark behind the last message does not, as the prompt's own boundary lies there,
    one inside of it does. Of too many marks the last ``MAX_MARKED_HEADS`` count. Heads of one
    length are one. A template that refuses what is invented has none there.

    ``messages`` are those of the conversation in the form that ``render`` takes, and ``escape``
    gives a text that form; ``encode`` encodes a rendered text.
    """
    num_leading = sum(1 for _ in takewhile(_is_system, messages))
    marks = sorted(conversation.marked_messages)
    is_marked = conversation.marks_tools or any(0 <= i < num_leading for i in marks)
    marked = [(i, None) for i in marks if num_leading <= i < len(messages) - 1]
    inside = [mark for mark in conversation.marked_texts if num_leading <= mark[0] < len(messages)]
    # Behind a message is behind any place inside of it.
    places = sorted([*marked, *inside], key=lambda mark: (mark[0], mark[1] is None, mark[1] or 0))
    probes_by_end = [(list(_continuations(messages[:num_leading])), is_marked)]
    for i, num_characters in places[-MAX_MARKED_HEADS:]:
        if num_characters is None:
            probes = list(_continuations(messages[: i + 1]))
        else:
            said = escape(str(conversation.messages[i].get("content", ""))[:num_characters])
            probes = list(_rewordings(messages[: i + 1], said))
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
    """The history with invented messages, of roles that may follow, up to a user's question.

    They differ in length as well: some templates look at the end, or at the number of messages.
    """
    role = history[-1]["role"] if history else "system"
    rounds: list[Message] = []
    for answer, question in zip(ANSWERS, QUESTIONS, strict=True):
        said: Message = {"role": "assistant", "content": answer}
        asked: Message = {"role": "user", "content": question}
        following: list[Message] = []
        if role == "assistant":
            following += _results(history[-1], answer)
        if following or role in ("user", "tool"):
            following.append(said)
        yield [*history, *following, asked, *rounds]
        rounds = [said, asked]


def _rewordings(history: Sequence[Message], said: str) -> Iterator[list[Message]]:
    """The history with a last message that begins with ``said`` and goes on with what is invented.

    None when the message does not begin so in the form that is rendered.
    """
    last = history[-1]
    if said and str(last.get("content", "")).startswith(said):
        for answer in ANSWERS:
            yield [*history[:-1], {**last, "content": f"{said}{answer}"}]


def _results(message: Message, content: str) -> Iterator[Message]:
    """A result of each tool call in an assistant's message."""
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
    """How many tokens of the prompt all probes share, whatever text follows there."""
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
        # Only an added token cannot be joined to the text that follows.
        length -= 1
    # One token has to be left to compute.
    length = min(length, len(prompt.token_ids) - 1)
    return min(length, common_prefix_len(prompt.token_ids, shared.token_ids))
