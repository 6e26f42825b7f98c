"""The last requests and how often sessions came back, for people who look at the engine.

Owns which of it a tenant may see, and that none of it is text. Nothing here is kept over a restart.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvreg_service.core.events import Event
from kvreg_service.core.labels import Attach, FinishReason, Outcome, ReusePath, Tail
from kvreg_service.engine.observer import RequestRecord

MAX_SHOWN = 50
# A tenant sees its own also while others are busy; a few hundred kilobytes.
_MAX_KEPT = 1000


@dataclass(frozen=True)
class RecentRequest:
    """One request that has ended. What a request without a lane never had is None.

    Times are seconds; ``ended_ago_s`` counts from its end to the moment at which it is shown.
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
    """Requests since the start, and those of them that came back from the registry.

    ``returned`` are those whose conversation ended with an answer and whose state was in an entry.
    """

    requests: int = 0
    assistant_tail: int = 0
    from_registry: int = 0
    returned: int = 0


@dataclass(frozen=True)
class RecentActivity:
    """What one viewer sees: the newest request first."""

    counts: ReturnCounts
    requests: tuple[RecentRequest, ...]


@dataclass(frozen=True)
class _Ended:
    """What is kept of a record: not its prompt, which is long."""

    at_s: float
    shown: RecentRequest


class RecentRequests:
    """Keeps the last requests. Implements `engine.observer.Observer`; read from any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._ended: deque[_Ended] = deque(maxlen=_MAX_KEPT)
        self._counts: defaultdict[str | None, ReturnCounts] = defaultdict(ReturnCounts)

    def request_ended(self, record: RequestRecord) -> None:
        """Note a request."""
        ended = _ended(record)
        with self._lock:
            self._ended.append(ended)
            for viewer in (None, record.tenant):
                self._counts[viewer] = _counted(self._counts[viewer], ended.shown)

    def registry_changed(self, event: Event) -> None:
        """What is kept is shown as it is, and not as it came to be."""

    def states_moved(self, seconds: float, *, is_attach: bool, is_detach: bool) -> None:
        """Times of single moves are left to metrics."""

    def token_followed(self, gap_s: float) -> None:
        """Times of single tokens are left to metrics."""

    def show(self, tenant: str | None) -> RecentActivity:
        """Return what a tenant may see of it; None sees everybody's."""
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
    cached = None if admission is None else admission.cached_tokens
    shown = RecentRequest(
        request_id=record.request_id,
        tenant=record.tenant,
        ended_ago_s=0.0,
        outcome=record.outcome,
        error_code=record.error_code,
        finish_reason=record.finish_reason,
        tail=record.tail,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=cached,
        computed_tokens=None if cached is None else record.prompt_tokens - cached,
        completion_tokens=len(record.output_ids),
        reuse_path=None if admission is None else admission.reuse_path,
        attach=None if admission is None else admission.attach,
        lane_id=None if admission is None else admission.lane_id,
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
