"""Ids of distinct types. At run time they are plain integers, and request ids are strings."""

from typing import NewType

LaneId = NewType("LaneId", int)
SlotId = NewType("SlotId", int)
PageId = NewType("PageId", int)
StateId = NewType("StateId", int)
SessionId = NewType("SessionId", int)
RequestId = NewType("RequestId", str)

PAGE_TOKENS = 64
"""Tokens of one KV page, and of one link of a ledger's digest chain."""


def pages_for(num_tokens: int) -> int:
    """Return how many pages hold ``num_tokens`` tokens."""
    return -(-num_tokens // PAGE_TOKENS)
