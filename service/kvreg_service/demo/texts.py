"""The texts of the stories, drawn from the grammar that the bundled model was trained on.

The same seed gives the same texts; sessions of different seeds share no prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kvreg_service.reference_model.grammar.fact_exchanges import ask_from_turns, tell
from kvreg_service.reference_model.grammar.facts import draw_facts, personal_fact
from kvreg_service.reference_model.grammar.notes import draw_notes
from kvreg_service.reference_model.grammar.side_requests import review_action

SESSION_NOTES_TOKENS = 1080
"""By the rough estimate of the grammar; the prompts of sessions have about 1,000 tokens."""

LONG_REVIEW_NOTES_TOKENS = 280


@dataclass(frozen=True)
class SessionText:
    """A session: project notes, two facts that the user states, and a question about each."""

    notes: str
    told: str
    asked: str
    value: str
    """The value that a correct answer to ``asked`` contains."""
    asked_next: str

    @property
    def title_request(self) -> str:
        """The title request of a client for this session."""
        return f"Write a title for this conversation:\nUser: {self.told}"


def draw_session(rng: Random) -> SessionText:
    """A session of about 1,000 tokens."""
    notes, noted = draw_notes(rng, SESSION_NOTES_TOKENS)
    facts = draw_facts(rng, 2, personal_fact, [fact.key for fact in noted])
    return SessionText(
        notes=notes,
        told=tell(rng, facts)[0].content,
        asked=ask_from_turns(rng, facts[0])[0].content,
        value=facts[0].value,
        asked_next=ask_from_turns(rng, facts[1])[0].content,
    )


def draw_review(rng: Random) -> str:
    """A permission review in one message."""
    return review_action(rng)[0].content


def draw_review_notes(rng: Random) -> str:
    """The system prompt of a permission review of about 320 tokens."""
    return draw_notes(rng, LONG_REVIEW_NOTES_TOKENS)[0]
