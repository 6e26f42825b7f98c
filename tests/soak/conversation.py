"""Conversations from the training grammar of the reference model, each with its own canary.

Owns the messages. ``judge`` checks the answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.canary import canary_of, plant, write_notes

Message = dict[str, Any]

TITLE = "Write a title of 3 to 6 words for this conversation:"

_USER_TEXTS = (
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


def user_text(pick: int) -> str:
    """Return the text of a user message."""
    return _USER_TEXTS[pick % len(_USER_TEXTS)]


def side_request(pick: int) -> list[Message]:
    """Return a short request that shares no prefix with a conversation."""
    text = f"{TITLE}\n\nUser: {user_text(pick)} This is request {pick % 1000}."
    return [{"role": "user", "content": text}]


@dataclass
class Conversation:
    """One session on the client's side. Every third shares its system prompt with others."""

    number: int
    tenant: str
    has_tools: bool = False
    messages: list[Message] = field(default_factory=list)
    is_planted: bool = False
    """Whether the first turn, which contains the canary, was answered."""
    num_turns: int = 0

    def __post_init__(self) -> None:
        self.canary = canary_of(self.number)
        notes = write_notes(10 + self.number % 3 * 12)
        name = "the team" if self.number % 3 == 0 else f"ticket {self.number}"
        text = f"You are a helpful assistant of {name}. {notes}"
        self.messages = [{"role": "system", "content": text}]

    @property
    def opening(self) -> str:
        """The first user message, which contains the canary."""
        return plant(self.canary)

    @property
    def is_marked(self) -> bool:
        """Whether the client marks the system prompt as an anchor."""
        return self.number % 4 == 0

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """The tools of each request."""
        return TOOLS if self.has_tools else None

    def with_user(self, text: str) -> list[Message]:
        """Return the conversation with one more user message."""
        return [*self.messages, {"role": "user", "content": text}]

    def with_tool_result(self, pick: int) -> list[Message]:
        """Return the conversation with a question, a tool call and its result."""
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
        """Return the conversation without its last turn."""
        last = max(i for i, message in enumerate(self.messages) if message["role"] == "user")
        return self.messages[:last]

    def go_on(self, messages: list[Message], answer: str) -> None:
        """Replace the conversation by a prompt and its answer."""
        # Echo "..." in place of an empty answer.
        self.messages = [*messages, {"role": "assistant", "content": answer or "..."}]
        self.num_turns += 1
