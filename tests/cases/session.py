"""A session that echoes every answer, and the checks HIT, MISS, FALLBACK and CANARY.

CLEAN, the check of a whole server, is in `server`.
"""

from __future__ import annotations

from typing import Any

from tests.canary import RECALL, canary_of, plant, write_notes
from tests.cases.server import Message, Reply, Server

SLACK_TOKENS = 64
# The bundled template ends a prompt with an empty think block, which it omits from history. The
# checkpoint is before that block, right after the opener of the assistant's message.
BOUNDARY_TOKENS = 4


def write_head(num_notes: int) -> str:
    """Return a system prompt without a nonce, of about seven tokens per note."""
    return f"You are a helpful assistant. {write_notes(num_notes)}".rstrip()


class Session:
    """A conversation with a unique nonce and canary, which echoes every answer.

    ``head`` is a system prompt to share with other sessions; the prompts then differ from the
    first user message on.
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
        self.canary = canary_of(number)
        server.canaries.add(self.canary)
        system = f"Ticket {number}. {write_head(num_notes)}" if head is None else head
        self.messages: list[Message] = [{"role": "system", "content": system}]
        self.opening = plant(self.canary)

    def begin(self, **options: Any) -> Reply:
        """Send the first turn, which contains the canary."""
        return self.say(self.opening, **options)

    def say(self, text: str, *, keeps_reasoning: bool = False, **options: Any) -> Reply:
        """Send one more turn and append its answer to the conversation."""
        reply = self.peek(text, **options)
        echo = reply.echo_with_reasoning if keeps_reasoning else reply.echo
        self.messages = [*self.messages_with(text), echo]
        return reply

    def peek(self, text: str, **options: Any) -> Reply:
        """Send one more turn without appending it to the conversation."""
        return self.server.ask(self.messages_with(text), **{**self._options, **options})

    def messages_with(self, text: str) -> list[Message]:
        """Return the conversation with one more user message."""
        return [*self.messages, {"role": "user", "content": text}]

    def recall(self, **options: Any) -> Reply:
        """CANARY: ask for the canary; the answer has it and that of no other session."""
        reply = self.say(RECALL, **options)
        found = {canary for canary in self.server.canaries if canary in reply.text}
        assert found == {self.canary}, reply
        return reply


def assert_hit(reply: Reply, previous: Reply) -> None:
    """HIT: the previous prompt was reused, except for its last page at most."""
    least = previous.prompt_tokens - SLACK_TOKENS
    assert least > 0, "the previous prompt is too short to tell a hit from a miss"
    assert reply.cached >= least, f"expected at least {least} cached tokens: {reply}"


def assert_hit_at_boundary(reply: Reply, previous: Reply) -> None:
    """HIT at the last turn boundary. With short turns, HIT alone would accept an older turn."""
    assert_hit(reply, previous)
    assert reply.cached >= previous.prompt_tokens - BOUNDARY_TOKENS, reply


def assert_miss(reply: Reply) -> None:
    """MISS: nothing was reused."""
    assert (reply.cached, reply.path) == (0, "full_reset"), f"expected a miss: {reply}"


def assert_fallback(reply: Reply, earlier: Reply, newer: Reply) -> None:
    """FALLBACK: the checkpoint of an earlier turn was reused, not that of the newer one."""
    assert_hit(reply, earlier)
    assert reply.cached <= earlier.prompt_tokens < newer.prompt_tokens - SLACK_TOKENS, reply
