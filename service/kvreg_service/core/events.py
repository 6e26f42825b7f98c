"""What a step changed, as values. The engine turns them into answers, log lines and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvreg_service.core.errors import KvregError
from kvreg_service.core.ids import LaneId, RequestId, SessionId, StateId
from kvreg_service.core.labels import (
    EvictionReason,
    FinishReason,
    Outcome,
    ReusePath,
    StateKind,
)
from kvreg_service.core.requests.request import Admission


@dataclass(frozen=True)
class Event:
    """The base of everything `Scheduler.commit` returns."""


@dataclass(frozen=True)
class Admitted(Event):
    """A request left the queue for a lane."""

    request_id: RequestId
    admission: Admission


@dataclass(frozen=True)
class Detached(Event):
    """The lane of a session at rest was taken by a request of another one.

    ``num_states`` of its states are still kept, with ``held_bytes`` that nothing else holds.
    """

    session_id: SessionId
    lane: LaneId
    num_states: int
    held_bytes: int


@dataclass(frozen=True)
class Attached(Event):
    """A request resumed a state of a session that was not the last one on its lane."""

    request_id: RequestId
    session_id: SessionId
    """The session of the state, which is not that of the request if it is a shared one."""
    lane: LaneId
    path: ReusePath


@dataclass(frozen=True)
class ReuseFailed(Event):
    """Preparing the lane of a request failed. The request is queued again, without reuse."""

    request_id: RequestId
    error: KvregError


@dataclass(frozen=True)
class StateKept(Event):
    """A state was captured on the way of a prompt, or is the end of an answer."""

    state_id: StateId
    session_id: SessionId
    request_id: RequestId
    kind: StateKind
    position: int
    is_marked: bool


@dataclass(frozen=True)
class Evicted(Event):
    """A kept state was freed. ``freed_bytes`` are those of its slot and of pages of its own."""

    state_id: StateId
    session_id: SessionId
    kind: StateKind
    reason: EvictionReason
    tenant: str
    tokens: int
    freed_bytes: int


@dataclass(frozen=True)
class PinEnded(Event):
    """A pin was removed because it left too little for others: its session grew, or a quota."""

    session_id: SessionId


@dataclass(frozen=True)
class UpkeepFailed(Event):
    """Bookkeeping that belongs to no request failed; a kept state may be lost."""

    error: KvregError


@dataclass(frozen=True)
class TokenSampled(Event):
    """One more token of an answer."""

    request_id: RequestId
    token: int


@dataclass(frozen=True)
class Terminal(Event):
    """The last event of a request; each request has exactly one."""

    request_id: RequestId
    outcome: ClassVar[Outcome]


@dataclass(frozen=True)
class Finished(Terminal):
    """The answer is complete."""

    outcome = Outcome.FINISHED
    reason: FinishReason
    completion_tokens: int


@dataclass(frozen=True)
class Cancelled(Terminal):
    """The client disconnected or cancelled."""

    outcome = Outcome.CANCELLED
    completion_tokens: int


@dataclass(frozen=True)
class Failed(Terminal):
    """The request could not be served. Others are not affected."""

    outcome = Outcome.FAILED
    error: KvregError
