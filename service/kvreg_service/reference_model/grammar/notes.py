"""System prompts: one line, or pages of project notes with facts and filler.

Owns the text of system messages. ``fact_exchanges`` has the questions about the notes.
"""

from __future__ import annotations

from random import Random

from kvreg_service.reference_model.grammar import wordlists as words
from kvreg_service.reference_model.grammar.facts import Fact, neutral_fact

FILLER = [
    "Please keep answers short and polite.",
    "All times are local times.",
    "Ask the team before changing anything important.",
    "The notes are updated once a week.",
    "Nothing here is final until the review is done.",
    "New members should read this page first.",
    "Keep the tone friendly.",
    "Do not share these notes outside the team.",
    "Open questions are discussed in the weekly call.",
    "The old process is no longer used.",
    "Backups are made every night.",
    "Every change needs a second pair of eyes.",
    "Costs are checked at the end of the month.",
    "The main goal is a stable and simple system.",
    "Support requests are answered within two days.",
    "Write down what you learn so that others can use it.",
    "Tests must pass before a change is merged.",
    "If something is unclear, say so.",
]
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a careful assistant that remembers what the user says.",
    "You answer briefly and correctly.",
    "You are a friendly assistant. Keep answers short.",
    "You are an assistant for a small team. Remember the facts you are told.",
    "Answer in one or two short sentences.",
]

# Rough estimates in tokens, to reach about a given length.
_HEADING_TOKENS = 20
_FILLER_TOKENS = 10
_FACT_TOKENS = 12
_MAX_TRIES_FOR_A_NEW_FACT = 20


def draw_notes(rng: Random, length_tokens: int) -> tuple[str, list[Fact]]:
    """Project notes of about ``length_tokens`` tokens, and the facts that they state."""
    project = rng.choice(words.PROJECTS)
    sentences: list[str] = []
    facts: list[Fact] = []
    tokens = _HEADING_TOKENS
    while tokens < length_tokens:
        if rng.random() < 0.4:
            sentences.append(rng.choice(FILLER))
            tokens += _FILLER_TOKENS
            continue
        fact = _try_new_fact(rng, {known.key for known in facts})
        if fact is None:
            break
        facts.append(fact)
        sentences.append(words.capitalise(fact.statement) + ".")
        tokens += _FACT_TOKENS
    heading = rng.choice(
        [
            f"Project notes for {project}:",
            f"You are the assistant of project {project}. Here are the notes.",
            f"These are the notes of team {project}. Use them to answer questions.",
        ]
    )
    return f"{heading}\n{_lay_out(rng, sentences)}", facts


def _try_new_fact(rng: Random, used_keys: set[str]) -> Fact | None:
    for _ in range(_MAX_TRIES_FOR_A_NEW_FACT):
        fact = neutral_fact(rng)
        if fact.key not in used_keys:
            return fact
    return None


def _lay_out(rng: Random, sentences: list[str]) -> str:
    if rng.random() < 0.5:
        return "\n".join(f"- {sentence}" for sentence in sentences)
    size = rng.randint(3, 6)
    paragraphs = (sentences[start : start + size] for start in range(0, len(sentences), size))
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs)
