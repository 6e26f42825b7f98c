"""The most recent requests and the number of returned sessions, for the page ``/ui``.

Owns which of them a tenant may see. It contains no text, and is lost at a restart.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvreg_service.core.events import Event
from kvreg_service.core.labels import Attach, FinishReason, Outcome, ReusePath, Tail
from kvreg_service.engine.interface.record import RequestRecord

MAX_SHOWN = 50
# Enough to show a tenant its own requests while others are busy; a few hundred kilobytes.
_MAX_KEPT = 1000


@dataclass(frozen=True)
class RecentRequest:
    """One finished request. Fields of the admission are None if it was never admitted.

    ``ended_ago_s`` is the time from its end to the call of ``show``.
    """

    request_id: str
    tenant: str
    ended_ago_s: float
    outcome: Outcome
    error_code: str | None
    finish_reason: FinishReason | None
    tail: Tail
    prompt_tokens: int
    cached_tokens: int | None
    computed_tokens: int | None
    completion_tokens: int
    reuse_path: ReusePath | None
    attach: Attach | None
    lane_id: int | None
    queue_s: float | None
    ttft_s: float | None
    total_s: float


@dataclass(frozen=True)
class ReturnCounts:
    """Counts of requests since the start, and of those attached from the registry.

    ``returned`` counts requests that do both: end with an assistant message, and attach from the
    registry.
    """

    requests: int = 0
    assistant_tail: int = 0
    from_registry: int = 0
    returned: int = 0


@dataclass(frozen=True)
class RecentActivity:
    """What one viewer sees, the newest request first."""

    counts: ReturnCounts
    requests: tuple[RecentRequest, ...]


@dataclass(frozen=True)
class _Ended:
    """The part of a record that is kept: everything except the prompt."""

    at_s: float
    shown: RecentRequest


class RecentRequests:
    """Keeps the most recent requests. Thread-safe.

    Implements `engine.interface.observer.Observer`.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._ended: deque[_Ended] = deque(maxlen=_MAX_KEPT)
        self._counts: defaultdict[str | None, ReturnCounts] = defaultdict(ReturnCounts)

    def request_ended(self, record: RequestRecord) -> None:
        """Add a finished request."""
        ended = _ended(record)
        with self._lock:
            self._ended.append(ended)
            for viewer in (None, record.tenant):
                self._counts[viewer] = _counted(self._counts[viewer], ended.shown)

    def registry_changed(self, event: Event) -> None:
        """Do nothing: events of the registry are not shown."""

    def state_copied(self, seconds: float) -> None:
        """Do nothing: durations of single moves are metrics."""

    def token_followed(self, gap_s: float) -> None:
        """Do nothing: times of single tokens are metrics."""

    def show(self, tenant: str | None) -> RecentActivity:
        """Return what a tenant may see; None sees the requests of all tenants."""
        now_s = self._now_s()
        with self._lock:
            ended = list(self._ended)
            counts = self._counts.get(tenant, ReturnCounts())
        own = [e for e in reversed(ended) if tenant is None or e.shown.tenant == tenant]
        return RecentActivity(
            counts, tuple(_shown(e, max(0.0, now_s - e.at_s)) for e in own[:MAX_SHOWN])
        )


def _ended(record: RequestRecord) -> _Ended:
    admission = record.admission
    shown = RecentRequest(
        request_id=record.request_id,
        tenant=record.tenant,
        ended_ago_s=0.0,
        outcome=record.outcome,
        error_code=record.error_code,
        finish_reason=record.finish_reason,
        tail=record.tail,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=None if admission is None else admission.cached_tokens,
        computed_tokens=None if admission is None else admission.computed_tokens,
        completion_tokens=len(record.output_ids),
        reuse_path=None if admission is None else admission.reuse_path,
        attach=None if admission is None else admission.attach,
        lane_id=None if admission is None else admission.lane,
        queue_s=record.queue_s,
        ttft_s=record.ttft_s,
        total_s=record.total_s,
    )
    return _Ended(record.ended_at_s, shown)


def _counted(counts: ReturnCounts, ended: RecentRequest) -> ReturnCounts:
    is_answered, is_registry = ended.tail is Tail.ASSISTANT, ended.attach is Attach.REGISTRY
    return ReturnCounts(
        requests=counts.requests + 1,
        assistant_tail=counts.assistant_tail + is_answered,
        from_registry=counts.from_registry + is_registry,
        returned=counts.returned + (is_answered and is_registry),
    )


def _shown(ended: _Ended, ago_s: float) -> RecentRequest:
    return replace(ended.shown, ended_ago_s=ago_s)
