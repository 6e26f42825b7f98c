"""Ids of distinct types. At run time they are plain integers, and request ids are strings."""

from typing import NewType

LaneId = NewType("LaneId", int)
EntryId = NewType("EntryId", int)
AnchorId = NewType("AnchorId", int)
SlotId = NewType("SlotId", int)
PageId = NewType("PageId", int)
SequenceId = NewType("SequenceId", int)
RequestId = NewType("RequestId", str)

PAGE_TOKENS = 64
"""Tokens of one KV page, and of one link of a ledger's digest chain."""


def pages_for(num_tokens: int) -> int:
    """Return how many pages hold ``num_tokens`` tokens."""
    return -(-num_tokens // PAGE_TOKENS)
