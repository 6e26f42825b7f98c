"""The bundled model recalls the facts of ten conversations correctly after side requests.

The conversations are drawn from the grammar that the model was trained on. The seeds are the first
ten for which the model answers correctly in a cold run; a test checks this premise as well.
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
    """Four facts in two turns, a calculation, and questions about two of the facts."""

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
    queried: list[Fact] = [facts[0], facts[3]]
    return Conversation(
        notes=notes,
        turns=(_text(tell(rng, facts[:2])), _text(tell(rng, facts[2:])), _text(compute(rng))),
        questions=tuple(_text(ask_from_turns(rng, fact)) for fact in queried),
        values=tuple(fact.value for fact in queried),
        side_requests=tuple(_text(make(rng)) for make in (write_title, review_action, summarise)),
    )


def _text(exchange: Exchange) -> str:
    return exchange[0].content


class Chat:
    """A conversation that grows by user messages and the engine's answers."""

    def __init__(self, bench: EngineBench, notes: str) -> None:
        self._bench = bench
        self._messages: Messages = [("system", notes)]

    def send(self, text: str):
        self._messages.append(("user", text))
        (answer,) = self._bench.run(self._bench.chat(self._messages, max_tokens=64))
        self._messages.append(("assistant", answer.text))
        return answer


def _play_turns(bench: EngineBench, dialogue: Conversation) -> Chat:
    chat = Chat(bench, dialogue.notes)
    for turn in dialogue.turns:
        chat.send(turn)
    return chat


def _interrupt(bench: EngineBench, dialogue: Conversation, index: int) -> None:
    bench.run(bench.chat([("user", dialogue.side_requests[index])], max_tokens=64))


def _is_correct(texts: list[str], dialogue: Conversation) -> bool:
    return all(value in text for value, text in zip(dialogue.values, texts, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_cold_model_answers_correctly(make_bench, reference, seed):
    dialogue = conversation(seed)
    bench = make_bench(reference, entries=0, prefix_reuse=False)
    chat = _play_turns(bench, dialogue)

    assert _is_correct([chat.send(question).text for question in dialogue.questions], dialogue)


@pytest.mark.parametrize("keep_current", [True, False], ids=["keep", "drop"])
@pytest.mark.parametrize("seed", SEEDS)
def test_model_recalls_facts_after_side_requests(make_bench, reference, seed, keep_current):
    dialogue = conversation(seed)
    bench = make_bench(reference, keep_current=keep_current)
    chat = _play_turns(bench, dialogue)
    answers = []
    for index, question in enumerate(dialogue.questions):
        _interrupt(bench, dialogue, index)
        answers.append(chat.send(question))

    assert all(answer.admission.attach == "registry" for answer in answers)
    assert _is_correct([answer.text for answer in answers], dialogue)


def test_answers_are_wrong_when_another_sessions_pages_are_swapped_in(make_bench, reference):
    """The counterpart: the test above detects swapped pages."""
    num_wrong = 0
    for seed in SEEDS:
        dialogue, other = conversation(seed), conversation(seed + 100)
        # Without forks, each entry keeps a known session.
        bench = make_bench(reference, entries=2, eviction="none")
        chat = _play_turns(bench, dialogue)
        _play_turns(bench, other)
        _interrupt(bench, dialogue, 0)
        ours, theirs = (bench.kept_at(entry).pages for entry in (0, 1))
        for page, foreign in zip(ours, theirs, strict=False):
            bench.pages.copy_page(foreign, page)
        answer = chat.send(dialogue.questions[0])
        assert answer.admission.attach == "registry"
        num_wrong += dialogue.values[0] not in answer.text

    # A guess may be right by chance.
    assert num_wrong > len(SEEDS) // 2
