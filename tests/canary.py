"""The canary of a conversation with the reference model: a locker code that only it contains.

Owns the texts that several folders of tests send: notes for a system prompt, the message that
plants the canary, and the question for it. All of them are in the training grammar of the model.
"""

from __future__ import annotations

RECALL = "Please remind me: what is my locker code?"
_NOTES = (
    "Please keep answers short and polite.",
    "The notes are updated once a week.",
    "Keep the tone friendly.",
    "Backups are made every night.",
    "All times are local times.",
    "Every change needs a second pair of eyes.",
    "If something is unclear, say so.",
    "Support requests are answered within two days.",
)


def canary_of(number: int) -> str:
    """Return the locker code of a conversation; there are 9,000 different ones."""
    return str(1000 + number * 1237 % 9000)


def plant(canary: str) -> str:
    """Return the user message that contains the canary."""
    return f"My locker code is {canary}."


def write_notes(num_notes: int) -> str:
    """Return sentences for a system prompt, of about seven tokens each."""
    return " ".join(_NOTES[i % len(_NOTES)] for i in range(num_notes))
