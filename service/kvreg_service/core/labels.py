"""Closed sets of values that describe requests, sequences and lanes.

Every member is a ``str`` equal to its value: responses, metrics, logs and traces use it as it is.
A new member is a new value of a log field and of a metric label.
"""

from __future__ import annotations

from enum import StrEnum


class ReusePath(StrEnum):
    """Where the computation of a prompt starts."""

    FULL_RESET = "full_reset"
    APPEND_FRONTIER = "append_frontier"
    RESTORE_TURN_CHECKPOINT = "restore_turn_checkpoint"
    RESTORE_RESPONSE_CHECKPOINT = "restore_response_checkpoint"
    RESTORE_ANCHOR = "restore_anchor"


class Attach(StrEnum):
    """Where the reused sequence came from, if not from the lane itself."""

    NONE = "none"
    REGISTRY = "registry"
    ANCHOR = "anchor"


class Outcome(StrEnum):
    """How an accepted request ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    """Why a finished answer ended."""

    STOP = "stop"
    LENGTH = "length"


class Tail(StrEnum):
    """The role of the last message of a prompt."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


class EvictionReason(StrEnum):
    """Why a kept sequence was evicted."""

    ENTRY_NEEDED = "entry_needed"
    """Its entry went to a more valuable sequence."""
    PAGES_NEEDED = "pages_needed"
    """A running sequence needed its pages."""
    DISPLACED = "displaced"
    """Its lane was needed, and it got no entry."""
    ANCHOR_NEEDED = "anchor_needed"
    """Its anchor place went to a more valuable head."""
    EXPIRED = "expired"
    """Its time to live ended."""
    QUOTA = "quota"
    """It was the least valuable sequence of a tenant over its quota."""
    REQUESTED = "requested"
    """A client dropped it by its id."""
    FAILED = "failed"
    """Moving or running it failed, so its state cannot be trusted."""


class CheckpointKind(StrEnum):
    """Why the next prompt is expected to repeat everything before a checkpoint."""

    TURN = "turn"
    """It lies right after the opener of an answer."""
    RESPONSE = "response"
    """It lies inside an answer that the client had the model continue."""
    ANCHOR = "anchor"
    """It ends a head that many conversations begin with."""


class LaneState(StrEnum):
    """What a lane does: nothing, keep a sequence at rest, or run a request."""

    EMPTY = "empty"
    RETAINED = "retained"
    PREFILL = "prefill"
    DECODE = "decode"


class EntryState(StrEnum):
    """Whether a registry entry or an anchor place is occupied."""

    EMPTY = "empty"
    KEPT = "kept"


class CurrentState(StrEnum):
    """Whether an entry keeps the frontier state beside the checkpoint."""

    KEEP = "keep"
    DROP = "drop"
