"""Conversations in the words that the reference model knows, each with a canary of its own.

Owns what is said. What came of it is ``judge``'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

RECALL = "Please remind me: what is my locker code?"
TITLE = "Write a title of 3 to 6 words for this conversation:"

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
_SAID = (
    "Hello!",
    "What can you do?",
    "What is 7 plus 5?",
    "My cat is named Mila.",
    "The deploy is on Thursday.",
    "Repeat these words: falcon river maple.",
    "The billing service is owned by Nadia.",
    "Count from 3 to 12.",
    "Tell me a short story about Nora in Lisbon.",
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
        },
    }
]


def canary_of(number: int) -> str:
    """Return the locker code of a conversation; 9,000 of them differ."""
    return str(1000 + number * 1237 % 9000)


def something(pick: int) -> str:
    """Return something to say."""
    return _SAID[pick % len(_SAID)]


def side_request(pick: int) -> list[Message]:
    """Return a short request that has nothing to do with any conversation."""
    text = f"{TITLE}\n\nUser: {something(pick)} This is request {pick % 1000}."
    return [{"role": "user", "content": text}]


@dataclass
class Conversation:
    """One session as its client sees it. Every third has a system prompt that others share."""

    number: int
    tenant: str
    has_tools: bool = False
    messages: list[Message] = field(default_factory=list)
    is_planted: bool = False
    """Whether a first turn with the canary was answered."""
    num_turns: int = 0

    def __post_init__(self) -> None:
        self.canary = canary_of(self.number)
        notes = " ".join(_NOTES[i % len(_NOTES)] for i in range(10 + self.number % 3 * 12))
        name = "the team" if self.number % 3 == 0 else f"ticket {self.number}"
        text = f"You are a helpful assistant of {name}. {notes}"
        self.messages = [{"role": "system", "content": text}]

    @property
    def opening(self) -> str:
        """The first thing said, which plants the canary."""
        return f"My locker code is {self.canary}."

    @property
    def is_marked(self) -> bool:
        """Whether its client asks for an anchor behind the system prompt."""
        return self.number % 4 == 0

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """The tools that each of its requests names."""
        return TOOLS if self.has_tools else None

    def with_user(self, text: str) -> list[Message]:
        """Return the conversation and one more user message."""
        return [*self.messages, {"role": "user", "content": text}]

    def with_tool_result(self, pick: int) -> list[Message]:
        """Return the conversation with a question, a call of a tool and its result."""
        call = {"name": "lookup", "arguments": '{"key": "status"}'}
        name = f"call_{pick % 1000}"
        return [
            *self.with_user("Who owns the billing service?"),
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": name, "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": name, "content": "It is owned by Nadia."},
        ]

    def without_last_turn(self) -> list[Message]:
        """Return the conversation before its last user message; not before the canary's."""
        last = max(i for i, message in enumerate(self.messages) if message["role"] == "user")
        return self.messages[:last]

    def go_on(self, messages: list[Message], answer: str) -> None:
        """Take over a prompt and its answer."""
        # An empty answer cannot be sent back, and "..." is what a client shows instead.
        self.messages = [*messages, {"role": "assistant", "content": answer or "..."}]
        self.num_turns += 1
