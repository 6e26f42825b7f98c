"""Ten conversations with facts: after side requests the bundled model still answers them right.

The conversations are drawn from the grammar that the model was trained on. Their seeds are those of
the first ten that the model answers right when nothing is kept; that premise is a test as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import pytest
from engine_bench import EngineBench

from kvreg_service.reference_model.grammar.fact_exchanges import ask_from_turns, tell
from kvreg_service.reference_model.grammar.facts import Fact, draw_facts, personal_fact
from kvreg_service.reference_model.grammar.messages import Exchange
from kvreg_service.reference_model.grammar.notes import draw_notes
from kvreg_service.reference_model.grammar.side_requests import (
    review_action,
    summarise,
    write_title,
)
from kvreg_service.reference_model.grammar.task_exchanges import compute

SEEDS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
Messages = list[tuple[str, str]]


@dataclass(frozen=True)
class Conversation:
    """A user tells four facts in two turns, has a sum done, and asks for two of the facts."""

    notes: str
    turns: tuple[str, ...]
    questions: tuple[str, ...]
    values: tuple[str, ...]
    side_requests: tuple[str, ...]


@cache
def conversation(seed: int) -> Conversation:
    rng = Random(seed)
    notes, noted = draw_notes(rng, 150)
    facts = draw_facts(rng, 4, personal_fact, [fact.key for fact in noted])
    asked: list[Fact] = [facts[0], facts[3]]
    return Conversation(
        notes=notes,
        turns=(_text(tell(rng, facts[:2])), _text(tell(rng, facts[2:])), _text(compute(rng))),
        questions=tuple(_text(ask_from_turns(rng, fact)) for fact in asked),
        values=tuple(fact.value for fact in asked),
        side_requests=tuple(_text(make(rng)) for make in (write_title, review_action, summarise)),
    )


def _text(exchange: Exchange) -> str:
    return exchange[0].content


class Chat:
    """One conversation as it grows; the answers are the engine's own."""

    def __init__(self, bench: EngineBench, notes: str) -> None:
        self._bench = bench
        self._messages: Messages = [("system", notes)]

    def say(self, text: str):
        self._messages.append(("user", text))
        (answer,) = self._bench.run(self._bench.chat(self._messages, max_tokens=64))
        self._messages.append(("assistant", answer.text))
        return answer


def _tell(bench: EngineBench, told: Conversation) -> Chat:
    chat = Chat(bench, told.notes)
    for turn in told.turns:
        chat.say(turn)
    return chat


def _interrupt(bench: EngineBench, told: Conversation, index: int) -> None:
    bench.run(bench.chat([("user", told.side_requests[index])], max_tokens=64))


def _is_right(texts: list[str], told: Conversation) -> bool:
    return all(value in text for value, text in zip(told.values, texts, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_cold_model_answers_right(make_bench, reference, seed):
    told = conversation(seed)
    bench = make_bench(reference, entries=0, prefix_reuse=False)
    chat = _tell(bench, told)

    assert _is_right([chat.say(question).text for question in told.questions], told)


@pytest.mark.parametrize("keep_current", [True, False], ids=["keep", "drop"])
@pytest.mark.parametrize("seed", SEEDS)
def test_facts_survive_side_requests(make_bench, reference, seed, keep_current):
    told = conversation(seed)
    bench = make_bench(reference, keep_current=keep_current)
    chat = _tell(bench, told)
    answers = []
    for index, question in enumerate(told.questions):
        _interrupt(bench, told, index)
        answers.append(chat.say(question))

    assert all(answer.admission.attach == "registry" for answer in answers)
    assert _is_right([answer.text for answer in answers], told)


def test_answers_are_wrong_when_another_sessions_pages_are_swapped_in(make_bench, reference):
    """The counterpart: were pages mixed up, the test above would notice."""
    num_wrong = 0
    for seed in SEEDS:
        told, other = conversation(seed), conversation(seed + 100)
        # Without forks it is plain which entry keeps which session.
        bench = make_bench(reference, entries=2, eviction="none")
        chat = _tell(bench, told)
        _tell(bench, other)
        _interrupt(bench, told, 0)
        ours, theirs = (bench.kept_at(entry).pages for entry in (0, 1))
        for page, foreign in zip(ours, theirs, strict=False):
            bench.pages.copy_page(foreign, page)
        answer = chat.say(told.questions[0])
        assert answer.admission.attach == "registry"
        num_wrong += told.values[0] not in answer.text

    # A guess may be right by chance.
    assert num_wrong > len(SEEDS) // 2
