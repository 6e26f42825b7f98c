"""Prompts as clients of a chat template produce them. Knows nothing of the scheduler.

A turn is ``history, USER, words, OPEN`` and then a think block that the next turn's history does
not repeat. So the next user message finds only the checkpoint behind OPEN, while a prompt that goes
on with the answer finds the frontier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

USER, OPEN, THINK, END = 1, 2, 3, 4
FIRST_WORD = 10
NUM_WORDS = 90


def words(seed: object, count: int) -> list[int]:
    rng = Random(repr(seed))
    return [FIRST_WORD + rng.randrange(NUM_WORDS) for _ in range(count)]


@dataclass(frozen=True)
class Prompt:
    """``boundary`` is where the next turn is sure to agree up to."""

    tokens: list[int]
    boundary: int | None


def user_turn(history: list[int], message: list[int], think_tokens: int) -> Prompt:
    stable = [*history, USER, *message, OPEN]
    tokens = stable + [THINK] * think_tokens
    # As the probe has it: one token is left to compute.
    return Prompt(tokens, min(len(stable), len(tokens) - 1))


@dataclass
class Conversation:
    """One session of one client."""

    name: str
    system: list[int] = field(default_factory=list)
    histories: list[list[int]] = field(default_factory=list)
    """What each turn's prompt began with, oldest first."""
    last: Prompt | None = None
    last_message: list[int] = field(default_factory=list)
    answer: list[int] | None = None
    num_asked: int = 0

    def restart(self) -> None:
        """The client begins a new chat."""
        self.histories, self.last, self.answer = [], None, None

    def fresh_words(self, count: int) -> list[int]:
        self.num_asked += 1
        return words((self.name, self.num_asked), count)

    def history(self) -> list[int]:
        """Everything so far as the next prompt repeats it: think blocks are gone."""
        if self.last is None or self.answer is None:
            return self.histories[-1] if self.histories else self.system
        answer = [token for token in self.answer if token != END]
        return [*self.histories[-1], USER, *self.last_message, OPEN, *answer, END]

    def next_turn(self, num_words: int, think_tokens: int) -> Prompt:
        return self._ask(self.history(), self.fresh_words(num_words), think_tokens)

    def edited(self, turns_back: int, num_words: int, think_tokens: int) -> Prompt:
        """An earlier message is replaced, and what followed it is gone."""
        keep = max(1, len(self.histories) - turns_back)
        history = self.histories[keep - 1] if self.histories else self.system
        self.histories = self.histories[: keep - 1]
        return self._ask(history, self.fresh_words(num_words), think_tokens)

    def continued(self, num_words: int) -> Prompt | None:
        """The prompt ends with the answer itself, which the model is to continue."""
        if self.last is None or self.answer is None:
            return None
        tokens = [*self.last.tokens, *self.answer, *self.fresh_words(num_words)]
        return Prompt(tokens, len(tokens) - 1)

    def postfix(self, num_words: int, think_tokens: int) -> Prompt:
        """A side request that begins with the session's own history."""
        return user_turn(self.history(), self.fresh_words(num_words), think_tokens)

    def _ask(self, history: list[int], message: list[int], think_tokens: int) -> Prompt:
        self.histories.append(history)
        self.last_message = message
        self.last = user_turn(history, message, think_tokens)
        self.answer = None
        return self.last
