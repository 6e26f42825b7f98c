"""Conversations that share a head (prompt prefix), for the anchor tests."""

from __future__ import annotations

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.request import Head

THEIRS = Identity(b"epoch", "theirs")
HEAD_TOKENS = 200
WHOLE = 192
"""The part of a 200-token head that fills whole pages."""


def system(number: int, length: int = HEAD_TOKENS) -> list[int]:
    return list(range(10_000 * number, 10_000 * number + length))


def chat(number: int, question: int, length: int = HEAD_TOKENS) -> list[int]:
    return [*system(number, length), *range(500 + 50 * question, 540 + 50 * question), 7]


def begin(core, number, question, *, marked=False, length=HEAD_TOKENS, run=True, **options):
    """Begin a conversation with a shared head and a checkpoint before the last token."""
    prompt = chat(number, question, length)
    options = {"boundary": len(prompt) - 1, "max_tokens": 3, **options}
    do = core.run if run else core.submit
    return do(prompt, heads=(Head(length, marked),), **options)


def heads_of(core) -> list[int]:
    """Return the numbers of the kept heads, from their first tokens."""
    return [
        anchor.sequence.ledger.tokens[0] // 10_000 for anchor in core.scheduler.holdings.anchors
    ]


def anchors_of(core):
    return list(core.scheduler.holdings.anchors)


def cold_answer(make_core, prompt, max_tokens=3):
    return make_core().run(prompt, max_tokens=max_tokens).answer
