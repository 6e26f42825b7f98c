"""Finds the stable boundary: the prefix of a prompt that the next request is sure to repeat.

The recurrent state of a hybrid model can be resumed only at positions where it was copied, and
templates rewrite history: they drop reasoning, or add an empty think block to the prompt only. The
boundary is found by rendering: the conversation is rendered as history, followed by a placeholder
answer and a next message, and its tokens are compared with the prompt. This works for any template.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvreg_service.chat.messages import Message
from kvreg_service.chat.prompt.common_prefix import common_prefix_len
from kvreg_service.core.errors import InvalidRequest

# Two placeholder answers without a common prefix, one of letters and one of digits: some
# vocabularies merge the end of the opener with one of them only.
ANSWERS = ("Quite so", "77 of them")
QUESTIONS = ("Go on", "4 more")


@dataclass(frozen=True)
class Boundary:
    """Token positions from 1 to the length of the prompt - 1, or None where there is no boundary.

    ``turn`` is stable when an answer and the next user message follow, ``round`` when a tool call
    and its result follow. ``round`` is known for prompts that end with a tool result. It advances
    with each round of a tool loop, also where the template keeps ``turn`` back. ``message`` is
    where the text of the last message begins, if a user wrote it: a prompt with that message edited
    repeats everything before.
    """

    turn: int | None
    round: int | None
    message: int | None = None


def find_boundary(
    messages: Sequence[Message],
    prompt_ids: array[int],
    encode: Callable[[Sequence[Message]], array[int]],
    *,
    is_continued: bool = False,
) -> Boundary:
    """Return the stable boundaries of ``prompt_ids``, which ``messages`` rendered to.

    ``encode`` renders and encodes a history. If the template rejects a history, for example because
    roles must alternate, there is no boundary. With ``is_continued`` the last message is the answer
    that the model continues.
    """
    turns = [
        _next_turn(messages, answer, question, is_continued=is_continued)
        for answer, question in zip(ANSWERS, QUESTIONS, strict=True)
    ]
    turn = _stable_len(prompt_ids, turns, encode)
    if messages[-1]["role"] == "user":
        edits = [[*messages[:-1], {**messages[-1], "content": text}] for text in QUESTIONS]
        return Boundary(turn, None, _stable_len(prompt_ids, edits, encode))
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
    # Nine letters and digits: some templates reject any other id.
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
    # At least one token must be computed: the first logits come from it.
    length = len(prompt_ids) - 1
    for history in histories:
        try:
            ids = encode(history)
        except InvalidRequest:
            return None
        length = min(length, common_prefix_len(prompt_ids, ids))
    return length if length >= 1 else None
