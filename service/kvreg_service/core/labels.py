"""Closed sets of values that describe requests, kept states and lanes.

Every member is a ``str`` equal to its value: responses, metrics, logs and traces use it as it is.
A new member is a new value of a log field and of a metric label.
"""

from __future__ import annotations

from enum import StrEnum


class StateKind(StrEnum):
    """Which position of a conversation a kept state is at."""

    FRONTIER = "frontier"
    """The end of an answer, or of what was computed before it was cancelled."""
    TURN = "turn"
    """Right after the opener of an answer: the user's next message repeats the prompt so far."""
    ROUND = "round"
    """The same inside of a tool loop: the next tool result repeats the prompt so far."""
    RESPONSE = "response"
    """Inside of an answer that the client had the model continue."""
    HEAD = "head"
    """The end of a head that many conversations begin with."""
    BRANCH_POINT = "branch_point"
    """Where a prompt left a path that is kept, or where an edited last message would leave it."""

    @property
    def is_boundary(self) -> bool:
        """Whether the next request of the same conversation is expected to resume here."""
        return self in (StateKind.TURN, StateKind.ROUND, StateKind.RESPONSE)


class ReusePath(StrEnum):
    """Where the computation of a prompt starts."""

    FULL_RESET = "full_reset"
    APPEND_FRONTIER = "append_frontier"
    RESTORE_TURN_CHECKPOINT = "restore_turn_checkpoint"
    RESTORE_RESPONSE_CHECKPOINT = "restore_response_checkpoint"
    RESTORE_ANCHOR = "restore_anchor"
    RESTORE_BRANCH_POINT = "restore_branch_point"


class Attach(StrEnum):
    """Where the resumed state came from, if not from the session that was last on the lane."""

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
    """Why a kept state was freed."""

    SLOT_NEEDED = "slot_needed"
    """A running request needed its slot."""
    PAGES_NEEDED = "pages_needed"
    """A running request needed its pages."""
    DISPLACED = "displaced"
    """Its session lost its lane: drop mode keeps no frontier then, and ``none`` only R sessions."""
    SUPERSEDED = "superseded"
    """With ``none``, its session went on: a session keeps its last boundary and frontier only."""
    EXPIRED = "expired"
    """The time to live of its session ended."""
    QUOTA = "quota"
    """It was the least valuable state of a tenant over its quota."""
    REQUESTED = "requested"
    """A client dropped its session by its id."""
    FAILED = "failed"
    """Planning a request failed while it was being resumed."""


class LaneState(StrEnum):
    """What a lane does: nothing yet, nothing since its last session, or run a request."""

    EMPTY = "empty"
    RETAINED = "retained"
    PREFILL = "prefill"
    DECODE = "decode"


class CurrentState(StrEnum):
    """Whether a displaced session keeps its frontier beside its boundary."""

    KEEP = "keep"
    DROP = "drop"
