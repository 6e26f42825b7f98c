"""Finds how much of a prompt the next request of the same conversation is sure to repeat.

The recurrent state of a hybrid model can be resumed only where it was copied, and templates
rewrite the past: they drop reasoning, or put an empty think block into the prompt that history
does not have. This module asks the template itself: it renders the conversation as history,
followed by an invented answer and a next message, and compares tokens. It knows no template.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvreg_service.chat.messages import Message
from kvreg_service.chat.prompt.common_prefix import common_prefix_len
from kvreg_service.core.errors import InvalidRequest

# Two answers that share no beginning, one of letters and one of digits: some vocabularies join
# the end of the opener to the one but not to the other.
ANSWERS = ("Quite so", "77 of them")
QUESTIONS = ("Go on", "4 more")


@dataclass(frozen=True)
class Boundary:
    """Positions in a prompt, in tokens: from 1 to the prompt's length - 1, or None for no such.

    Units: ``turn`` holds when an answer and a user's next message follow. ``round`` holds when
    the answer is a tool call and its result follows; it is known for prompts that end with a tool
    result, and advances with each round of a tool loop, also where ``turn`` stays behind.
    """

    turn: int | None
    round: int | None


def find_boundary(
    messages: Sequence[Message],
    prompt_ids: array[int],
    encode: Callable[[Sequence[Message]], array[int]],
    *,
    is_continued: bool = False,
) -> Boundary:
    """The stable boundaries of the prompt ``prompt_ids`` that ``messages`` rendered to.

    ``encode`` renders and encodes a history. A history that the template refuses (roles that must
    alternate, for one) means no boundary. With ``is_continued`` the last message is the answer
    that the model goes on with.
    """
    turns = [
        _next_turn(messages, answer, question, is_continued=is_continued)
        for answer, question in zip(ANSWERS, QUESTIONS, strict=True)
    ]
    turn = _stable_len(prompt_ids, turns, encode)
    if messages[-1]["role"] != "tool":
        return Boundary(turn, None)
    rounds = [[*messages, *_tool_round("", 0)], [*messages, *_tool_round(ANSWERS[1], 1)]]
    return Boundary(turn, _stable_len(prompt_ids, rounds, encode))


def _next_turn(
    messages: Sequence[Message], answer: str, question: str, *, is_continued: bool
) -> list[Message]:
    user: Message = {"role": "user", "content": question}
    if not is_continued:
        return [*messages, {"role": "assistant", "content": answer}, user]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}{answer}"}, user]


def _tool_round(content: str, variant: int) -> list[Message]:
    # Nine letters and digits: some templates refuse ids of another form.
    call_id = f"call0000{variant}"
    function = {"name": f"tool_{variant}", "arguments": {"key": QUESTIONS[variant]}}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {
            "role": "tool",
            "content": QUESTIONS[variant],
            "tool_call_id": call_id,
            "name": f"tool_{variant}",
        },
    ]


def _stable_len(
    prompt_ids: array[int],
    histories: Sequence[Sequence[Message]],
    encode: Callable[[Sequence[Message]], array[int]],
) -> int | None:
    # One token has to be left to compute: without it there are no logits to go on from.
    length = len(prompt_ids) - 1
    for history in histories:
        try:
            ids = encode(history)
        except InvalidRequest:
            return None
        length = min(length, common_prefix_len(prompt_ids, ids))
    return length if length >= 1 else None
