"""Scores of greedy, free-running answers on chats of held-out seeds.

Owns the counting. The chats come from the grammar of training; only the seeds differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

import torch

from kvreg_service.reference_model.grammar.messages import Ask, Message
from kvreg_training.data.chat import Chat
from kvreg_training.data.generator import Stage, make_chat, make_session
from kvreg_training.evaluation.oracle import Answer, Oracle, api_messages
from kvreg_training.evaluation.teacher_forced import MEMORY_ASKS
from kvreg_training.model.reference_model import ReferenceModel
from kvreg_training.shape import END_OF_MESSAGE_ID

EVALUATION_SEED = 424242
_CONTEXT_LIMITS = (250, 600, 1000)
CONTEXT_RANGES = (*(f"< {limit}" for limit in _CONTEXT_LIMITS), f">= {_CONTEXT_LIMITS[-1]}")
"""Names of the ranges of prompt lengths, each without those before it."""


@dataclass
class Tally:
    """Counts of answers: all, those equal to the expected text, those with the right value."""

    num: int = 0
    num_exact: int = 0
    num_right: int = 0

    def add(self, answer: str, expected: Message) -> None:
        """Counts one answer."""
        self.num += 1
        self.num_exact += answer == expected.content
        self.num_right += expected.value is not None and expected.value in answer


@dataclass
class DraftTally:
    """First drafts of the MTP head, and those that equal the greedy token of the trunk."""

    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True)
class WrongAnswer:
    """An answer without the right value."""

    ask: Ask
    question: str
    expected: str
    answer: str


@dataclass
class GreedyScore:
    """One question per chat."""

    by_ask: dict[Ask, Tally] = field(default_factory=dict)
    by_context: dict[str, Tally] = field(default_factory=dict)
    drafts_by_ask: dict[Ask, DraftTally] = field(default_factory=dict)
    num_answer_tokens: int = 0
    wrong: list[WrongAnswer] = field(default_factory=list)

    @property
    def memory(self) -> Tally:
        """The answers that need a fact of an earlier turn or of the system prompt."""
        tallies = [self.by_ask[ask] for ask in MEMORY_ASKS if ask in self.by_ask]
        return Tally(
            sum(tally.num for tally in tallies),
            sum(tally.num_exact for tally in tallies),
            sum(tally.num_right for tally in tallies),
        )

    @property
    def drafts(self) -> DraftTally:
        """All drafts."""
        tallies = self.drafts_by_ask.values()
        return DraftTally(
            sum(tally.num_drafted for tally in tallies),
            sum(tally.num_accepted for tally in tallies),
        )


def held_out_questions(num_chats: int) -> Iterator[tuple[Chat, int]]:
    """Yield chats of a held-out seed, each with the position of the answer to score."""
    rng = Random(EVALUATION_SEED)
    for _ in range(num_chats):
        chat = make_chat(rng, Stage.MIXED)
        from_memory = chat.answer_indices(*MEMORY_ASKS)
        # Prefers recall questions: they are the purpose of the checkpoint.
        if from_memory and rng.random() < 0.7:
            yield chat, rng.choice(from_memory)
        else:
            yield chat, rng.choice(chat.answer_indices())


def score_greedy(
    oracle: Oracle, model: ReferenceModel, questions: Iterable[tuple[Chat, int]]
) -> GreedyScore:
    """Score greedy answers of the oracle, and drafts of the MTP head of ``model`` on them."""
    score = GreedyScore()
    for chat, index in questions:
        expected = chat.messages[index]
        assert expected.ask is not None, "the position is that of an answer"
        prompt = oracle.prompt(api_messages(chat, index))
        answer = oracle.answer(prompt)
        score.num_answer_tokens += len(answer.token_ids)
        score.by_ask.setdefault(expected.ask, Tally()).add(answer.text, expected)
        if expected.ask in MEMORY_ASKS:
            context = _context_range(len(prompt))
            score.by_context.setdefault(context, Tally()).add(answer.text, expected)
        if expected.value is not None and expected.value not in answer.text:
            question = chat.messages[index - 1].content
            score.wrong.append(WrongAnswer(expected.ask, question, expected.content, answer.text))
        drafts = score.drafts_by_ask.setdefault(expected.ask, DraftTally())
        _count_drafts(drafts, model, prompt, answer)
    return score


def _context_range(num_tokens: int) -> str:
    return CONTEXT_RANGES[bisect_right(_CONTEXT_LIMITS, num_tokens)]


@torch.no_grad()
def _count_drafts(
    tally: DraftTally, model: ReferenceModel, prompt: list[int], answer: Answer
) -> None:
    token_ids = torch.tensor([[*prompt, *answer.token_ids, END_OF_MESSAGE_ID]])
    hidden = model.hidden(token_ids)
    greedy = model.lm_head(hidden)[0].argmax(-1)
    drafted = model.lm_head(model.draft_hidden(token_ids, hidden))[0].argmax(-1)
    # Position i drafts token i + 2, which the trunk chooses at i + 1. The first answer token is
    # known when the first draft is made.
    first, last = len(prompt) - 1, token_ids.shape[1] - 2
    tally.num_drafted += last - first
    tally.num_accepted += int((drafted[first:last] == greedy[first + 1 : last + 1]).sum())


def score_memory_only(oracle: Oracle, num_questions: int) -> Tally:
    """Score recall questions only, for a second dtype."""
    rng = Random(EVALUATION_SEED)
    tally = Tally()
    while tally.num < num_questions:
        chat = make_chat(rng, Stage.MIXED)
        indices = chat.answer_indices(*MEMORY_ASKS)
        if indices:
            index = rng.choice(indices)
            answer = oracle.answer(oracle.prompt(api_messages(chat, index)))
            tally.add(answer.text, chat.messages[index])
    return tally


def score_thinking(oracle: Oracle, num_chats: int) -> tuple[int, int]:
    """Return how many answers with thinking on are correct, and how many there are."""
    rng = Random(EVALUATION_SEED + 3)
    num = num_right = 0
    for _ in range(num_chats):
        chat = make_session(rng, notes_tokens=0, num_turns=rng.randint(2, 5))
        indices = [i for i in chat.answer_indices() if chat.messages[i].reasoning]
        if not indices:
            continue
        expected = chat.messages[indices[-1]]
        messages = api_messages(chat, indices[-1])
        text = oracle.answer(oracle.prompt(messages, enable_thinking=True)).text
        thought, marker, answered = text.rpartition("</think>")
        num += 1
        num_right += (
            bool(marker)
            and thought.startswith((expected.reasoning or "")[:8])
            and (expected.value or "") in answered
        )
    return num_right, num


def score_continuation(oracle: Oracle, num_chats: int) -> tuple[int, int]:
    """Return how many continuations of a given beginning are exact, and how many there are."""
    rng = Random(EVALUATION_SEED + 4)
    num = num_exact = 0
    for _ in range(num_chats):
        chat = make_chat(rng, Stage.MIXED)
        indices = chat.answer_indices("recall", "notes", "tell")
        if not indices:
            continue
        index = rng.choice(indices)
        expected = chat.messages[index].content
        words = expected.split(" ")
        beginning = " ".join(words[: rng.randint(1, max(1, len(words) // 2))])
        messages = [*api_messages(chat, index), {"role": "assistant", "content": beginning}]
        prompt = oracle.encode(oracle.render(messages, continue_final_message=True))
        num += 1
        num_exact += beginning + oracle.answer(prompt).text == expected
    return num_exact, num
