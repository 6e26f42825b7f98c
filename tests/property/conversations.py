"""Prompts as clients of a chat template produce them. Does not use the scheduler.

A turn is ``history, USER, words, OPEN`` and then a think block that the next turn's history does
not repeat. The next user turn can therefore resume only from the boundary after OPEN, while a
prompt that continues the answer, or appends the result of a tool, can resume from the frontier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

USER, OPEN, THINK, END, TOOL = 1, 2, 3, 4, 6
FIRST_WORD = 10
NUM_WORDS = 90


def words(seed: object, count: int) -> list[int]:
    rng = Random(repr(seed))
    return [FIRST_WORD + rng.randrange(NUM_WORDS) for _ in range(count)]


@dataclass(frozen=True)
class Prompt:
    """``boundary`` ends the longest prefix that the next turn is certain to repeat.

    In a tool loop ``round_boundary`` is that of the next round. An edit of the last message would
    leave the prompt at ``branch_point``.
    """

    tokens: list[int]
    boundary: int | None
    round_boundary: int | None = None
    branch_point: int | None = None


def user_turn(history: list[int], message: list[int], think_tokens: int) -> Prompt:
    stable = [*history, USER, *message, OPEN]
    tokens = stable + [THINK] * think_tokens
    # As in the service: at least one token remains to be computed.
    boundary = min(len(stable), len(tokens) - 1)
    return Prompt(tokens, boundary, branch_point=len(history) or None)


@dataclass
class Conversation:
    """One session of one client."""

    name: str
    system: list[int] = field(default_factory=list)
    histories: list[list[int]] = field(default_factory=list)
    """The history in front of each turn's message, oldest first."""
    last: Prompt | None = None
    last_message: list[int] = field(default_factory=list)
    answer: list[int] | None = None
    num_messages: int = 0

    def restart(self) -> None:
        """Start a new chat with the same system prompt."""
        self.histories, self.last, self.answer = [], None, None

    def fresh_words(self, count: int) -> list[int]:
        self.num_messages += 1
        return words((self.name, self.num_messages), count)

    def history(self) -> list[int]:
        """Return the history as the next prompt repeats it: without think blocks."""
        if self.last is None or self.answer is None:
            return self.histories[-1] if self.histories else self.system
        answer = [token for token in self.answer if token != END]
        return [*self.histories[-1], USER, *self.last_message, OPEN, *answer, END]

    def next_turn(self, num_words: int, think_tokens: int) -> Prompt:
        return self._ask(self.history(), self.fresh_words(num_words), think_tokens)

    def edited(self, turns_back: int, num_words: int, think_tokens: int) -> Prompt:
        """Return a prompt that replaces an earlier message and drops everything after it."""
        keep = max(1, len(self.histories) - turns_back)
        history = self.histories[keep - 1] if self.histories else self.system
        self.histories = self.histories[: keep - 1]
        return self._ask(history, self.fresh_words(num_words), think_tokens)

    def continued(self, num_words: int) -> Prompt | None:
        """Return a prompt that ends with the answer, which the model continues."""
        if self.last is None or self.answer is None:
            return None
        tokens = [*self.last.tokens, *self.answer, *self.fresh_words(num_words)]
        return Prompt(tokens, len(tokens) - 1)

    def tool_round(self, num_words: int, think_tokens: int) -> Prompt | None:
        """Return a prompt that appends the result of a tool to the answer."""
        if self.last is None or self.answer is None:
            return None
        stable = [*self.last.tokens, *self.answer, TOOL, *self.fresh_words(num_words), OPEN]
        tokens = stable + [THINK] * think_tokens
        return Prompt(tokens, self.last.boundary, min(len(stable), len(tokens) - 1))

    def postfix(self, num_words: int, think_tokens: int) -> Prompt:
        """Return a side request that begins with the session's history."""
        return user_turn(self.history(), self.fresh_words(num_words), think_tokens)

    def _ask(self, history: list[int], message: list[int], think_tokens: int) -> Prompt:
        self.histories.append(history)
        self.last_message = message
        self.last = user_turn(history, message, think_tokens)
        self.answer = None
        return self.last
