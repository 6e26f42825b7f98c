"""User and assistant messages about facts: stated, recalled, unknown, corrected, listed.

Owns one user message and its answer at a time; ``kvreg_training.data.generator`` joins exchanges to
conversations.
"""

from __future__ import annotations

from random import Random

from kvreg_service.reference_model.grammar.facts import Fact, FactMaker
from kvreg_service.reference_model.grammar.messages import Exchange, answer, user
from kvreg_service.reference_model.grammar.wordlists import capitalise

_MAX_LISTED_FACTS = 6
_MAX_TRIES_FOR_A_CORRECTION = 300


def join_clauses(clauses: list[str]) -> str:
    """``a``, ``a and b``, or ``a, b and c``."""
    if len(clauses) == 1:
        return clauses[0]
    return ", ".join(clauses[:-1]) + " and " + clauses[-1]


def bullets(sentences: list[str]) -> str:
    """A list with one sentence per line, each capitalised and with a full stop."""
    return "\n".join(f"- {capitalise(sentence)}." for sentence in sentences)


def tell(rng: Random, facts: list[Fact]) -> Exchange:
    """The user states facts; the assistant confirms them."""
    statements = [fact.statement for fact in facts]
    stated = join_clauses(statements)
    confirmed = join_clauses([fact.confirmation for fact in facts])
    separate = " ".join(f"{capitalise(statement)}." for statement in statements)
    asked, answered = [
        (f"{capitalise(stated)}.", f"Noted: {confirmed}. I will remember that for you."),
        (
            f"Please remember that {stated}.",
            f"I will remember that {confirmed}. You can ask me about it later.",
        ),
        (
            f"Just so you know, {stated}.",
            f"Thank you for telling me that {confirmed}. I have noted it.",
        ),
        (
            f"Hello! {capitalise(stated)}.",
            f"Hello! I have noted that {confirmed}. How can I help you?",
        ),
        (
            f"{separate} Can you keep that in mind?",
            f"Yes, I will keep in mind that {confirmed}.",
        ),
    ][rng.randrange(5)]
    plural = "s" if len(facts) > 1 else ""
    reasoning = f"The user tells me {len(facts)} fact{plural}. I should confirm."
    return [user(asked), answer(answered, "tell", facts[-1].value, reasoning)]


def ask_from_notes(rng: Random, fact: Fact) -> Exchange:
    """The user asks for a fact in the system prompt."""
    question, confirmation = fact.question, fact.confirmation
    asked, answered = [
        (f"According to the notes, {question}?", f"According to the notes, {confirmation}."),
        (
            f"{capitalise(question)}?",
            f"{capitalise(confirmation)}. This is written in the project notes.",
        ),
        (
            f"Please check the notes: {question}?",
            f"I checked the notes for you: {confirmation}.",
        ),
        (
            f"I have a question. {capitalise(question)}?",
            f"The answer is in the notes: {confirmation}.",
        ),
        (
            f"Can you tell me this: {question}?",
            f"Yes, I can tell you that. {capitalise(confirmation)}.",
        ),
    ][rng.randrange(5)]
    reasoning = f"The user asks {question}. The notes say: {confirmation}."
    return [user(asked), answer(answered, "notes", fact.value, reasoning)]


def ask_from_turns(rng: Random, fact: Fact) -> Exchange:
    """The user asks for a fact of an earlier turn."""
    question, confirmation = fact.question, fact.confirmation
    asked, answered = [
        (
            f"{capitalise(question)}?",
            f"{capitalise(confirmation)}. You told me this earlier in our conversation.",
        ),
        (
            f"Do you remember this: {question}?",
            f"Yes, I remember it well. {capitalise(confirmation)}.",
        ),
        (
            f"Please remind me: {question}?",
            f"Of course. As you said before, {confirmation}.",
        ),
        (
            f"I forgot something. {capitalise(question)}?",
            f"No problem, I still know it: {confirmation}.",
        ),
        (
            f"Can you tell me this: {question}?",
            f"Yes, I can tell you that. {capitalise(confirmation)}.",
        ),
    ][rng.randrange(5)]
    reasoning = f"The user asks {question}. Earlier I was told: {confirmation}."
    return [user(asked), answer(answered, "recall", fact.value, reasoning)]


def ask_unknown(rng: Random, fact: Fact) -> Exchange:
    """The user asks for a fact that does not occur in the conversation."""
    if rng.randrange(2) == 0:
        asked = f"{capitalise(fact.question)}?"
    else:
        asked = f"Can you tell me this: {fact.question}?"
    answered = f"I am sorry, but I do not know {fact.unknown}. You have not told me that yet."
    reasoning = f"The user asks {fact.question}. I was not told this."
    return [user(asked), answer(answered, "unknown", "do not know", reasoning)]


def try_correct(rng: Random, fact: Fact, make: FactMaker) -> tuple[Exchange, Fact] | None:
    """The user corrects ``fact``. None if ``make`` does not draw another value for it."""
    for _ in range(_MAX_TRIES_FOR_A_CORRECTION):
        corrected = make(rng)
        if corrected.key == fact.key and corrected.value != fact.value:
            break
    else:
        return None
    if rng.randrange(2) == 0:
        asked = f"Correction: {corrected.statement}."
        answered = f"Thank you for the correction. Now {corrected.confirmation}."
    else:
        asked = f"Something changed. Now {corrected.statement}."
        answered = f"I have updated it: now {corrected.confirmation}."
    reasoning = "The user corrects a fact. I should confirm the new value."
    return [user(asked), answer(answered, "change", corrected.value, reasoning)], corrected


def try_list_all(rng: Random, facts: list[Fact]) -> Exchange | None:
    """The user asks for a list of all facts. None if they are too many for a short answer."""
    if len(facts) > _MAX_LISTED_FACTS:
        return None
    asked = rng.choice(
        ["List everything I told you so far.", "Please list all the facts I told you."]
    )
    answered = "Here is what you told me:\n" + bullets([fact.confirmation for fact in facts])
    reasoning = f"The user told me {len(facts)} facts. I list them in order."
    return [user(asked), answer(answered, "list", capitalise(facts[0].confirmation), reasoning)]
