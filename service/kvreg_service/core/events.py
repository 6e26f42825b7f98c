"""What a step changed, as values. The engine turns them into answers, log lines and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvreg_service.core.errors import KvregError
from kvreg_service.core.ids import AnchorId, EntryId, LaneId, RequestId, SequenceId
from kvreg_service.core.labels import (
    CheckpointKind,
    EvictionReason,
    FinishReason,
    Outcome,
    ReusePath,
)
from kvreg_service.core.request import Admission


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
    """A displaced sequence was moved from a lane to an entry."""

    sequence_id: SequenceId
    lane: LaneId
    entry: EntryId
    held_bytes: int


@dataclass(frozen=True)
class Attached(Event):
    """A kept sequence was moved from an entry to a lane."""

    request_id: RequestId
    sequence_id: SequenceId
    entry: EntryId
    lane: LaneId
    path: ReusePath
    is_exchange: bool


@dataclass(frozen=True)
class ReuseFailed(Event):
    """Preparing the lane of a request failed. The request is queued again, without reuse."""

    request_id: RequestId
    error: KvregError


@dataclass(frozen=True)
class Forked(Event):
    """A copy of the reused sequence was kept before the request continues it."""

    sequence_id: SequenceId
    origin_id: SequenceId
    entry: EntryId
    held_bytes: int


@dataclass(frozen=True)
class Evicted(Event):
    """A kept sequence was evicted."""

    sequence_id: SequenceId
    entry: EntryId | None
    lane: LaneId | None
    anchor: AnchorId | None
    reason: EvictionReason
    tenant: str
    tokens: int
    held_bytes: int


@dataclass(frozen=True)
class CheckpointCaptured(Event):
    """A lane's state was copied at the boundary."""

    request_id: RequestId
    position: int
    kind: CheckpointKind


@dataclass(frozen=True)
class AnchorCaptured(Event):
    """A lane's state was copied to an anchor place, at the end of a head."""

    request_id: RequestId
    sequence_id: SequenceId
    anchor: AnchorId
    position: int
    is_marked: bool


@dataclass(frozen=True)
class PinEnded(Event):
    """A pin was removed because it left too little for others: its sequence grew, or a quota."""

    sequence_id: SequenceId


@dataclass(frozen=True)
class UpkeepFailed(Event):
    """Bookkeeping that belongs to no request failed; a kept sequence may be lost."""

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
