"""A session that echoes every answer, and the checks HIT, MISS, FALLBACK and CANARY.

CLEAN is a check of the whole server, and is there.
"""

from __future__ import annotations

from typing import Any

from tests.cases.server import Message, Reply, Server

SLACK_TOKENS = 64
# The bundled template ends a prompt with an empty think block that history does not have. The
# checkpoint sits before it, right behind the assistant's opener.
BOUNDARY_TOKENS = 4
ASKED = "Please remind me: what is my locker code?"
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


def write_head(num_notes: int) -> str:
    """A system prompt without a nonce, of about seven tokens a note."""
    notes = " ".join(_NOTES[i % len(_NOTES)] for i in range(num_notes))
    return f"You are a helpful assistant. {notes}".rstrip()


class Session:
    """A conversation with a nonce and a canary of its own, which echoes every answer.

    With ``head``, a system prompt, it begins as others do and has its nonce in its first turn.
    """

    def __init__(
        self,
        server: Server,
        number: int,
        *,
        num_notes: int = 24,
        head: str | None = None,
        **options: Any,
    ) -> None:
        self.server = server
        self._options = options
        self.canary = str(1000 + number * 1237 % 9000)
        server.canaries.add(self.canary)
        system = f"Ticket {number}. {write_head(num_notes)}" if head is None else head
        self.messages: list[Message] = [{"role": "system", "content": system}]
        self.opening = f"My locker code is {self.canary}."

    def begin(self, **options: Any) -> Reply:
        """The first turn, which plants the canary."""
        return self.say(self.opening, **options)

    def say(self, text: str, *, keeps_reasoning: bool = False, **options: Any) -> Reply:
        """One more turn; the conversation goes on from its answer."""
        reply = self.peek(text, **options)
        echo = reply.echo_with_reasoning if keeps_reasoning else reply.echo
        self.messages = [*self.messages_with(text), echo]
        return reply

    def peek(self, text: str, **options: Any) -> Reply:
        """Ask for an answer that the conversation does not go on from."""
        return self.server.ask(self.messages_with(text), **{**self._options, **options})

    def messages_with(self, text: str) -> list[Message]:
        """The conversation and one more user message."""
        return [*self.messages, {"role": "user", "content": text}]

    def recall(self, **options: Any) -> Reply:
        """CANARY: a turn that asks for what the first one planted, and gets that and no other's."""
        reply = self.say(ASKED, **options)
        told = {canary for canary in self.server.canaries if canary in reply.text}
        assert told == {self.canary}, reply
        return reply


def assert_hit(reply: Reply, previous: Reply) -> None:
    """HIT: everything up to the previous prompt's end, but for one page at most, was reused."""
    least = previous.prompt_tokens - SLACK_TOKENS
    assert least > 0, "a prompt this short tells no hit from a miss"
    assert reply.cached >= least, f"expected a hit of {least}: {reply}"


def assert_hit_at_boundary(reply: Reply, previous: Reply) -> None:
    """HIT, and not at an older turn, which the slack of a HIT lets pass where turns are short."""
    assert_hit(reply, previous)
    assert reply.cached >= previous.prompt_tokens - BOUNDARY_TOKENS, reply


def assert_miss(reply: Reply) -> None:
    """MISS: nothing was reused."""
    assert (reply.cached, reply.path) == (0, "full_reset"), f"expected a miss: {reply}"


def assert_fallback(reply: Reply, earlier: Reply, newer: Reply) -> None:
    """FALLBACK: reused up to an earlier turn's checkpoint, and not up to the newer one's."""
    assert_hit(reply, earlier)
    assert reply.cached <= earlier.prompt_tokens < newer.prompt_tokens - SLACK_TOKENS, reply
