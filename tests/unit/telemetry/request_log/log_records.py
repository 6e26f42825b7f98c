"""Records as an engine makes them, and logs that are closed with their test."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvreg_service.core.ids import LaneId, SessionId
from kvreg_service.core.labels import Attach, CurrentState, FinishReason, Outcome, ReusePath, Tail
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Admission, CachePolicy
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.request_log.lines import EngineFacts
from kvreg_service.telemetry.request_log.request_log import LogFile, LogLoss, RequestLog

TIMEOUT_S = 30.0
"""Far more than any step takes; without a limit a bug would block all tests."""

FACTS = EngineFacts(
    version="1", host="here", model="tiny", profile=None, profile_hash="0123", lanes=1, entries=1,
    anchors=2, current_state=CurrentState.KEEP, eviction="cost", prefix_reuse=True,
    max_context_tokens=4096, prefill_chunk_tokens=512, queue_limit=64, queue_timeout_s=60.0,
    kv_dtype="fp32", device="cpu", num_pages=100, page_bytes=640, slot_bytes=1000,
)  # fmt: skip

ADMISSION = Admission(
    lane=LaneId(0),
    session_id=SessionId(1),
    prompt_tokens=0,
    reuse_path=ReusePath.FULL_RESET,
    attach=Attach.NONE,
    cached_tokens=0,
    queue_s=0.25,
)

# Monotonic time, later than any test.
_ARRIVED_AT_S = 1e9

_RECORD = RequestRecord(
    request_id="chatcmpl-1",
    tenant="default",
    session=b"session",
    outcome=Outcome.FINISHED,
    error_code=None,
    finish_reason=FinishReason.STOP,
    tail=Tail.USER,
    prompt=TokenLedger(Identity(b"epoch", "default")),
    output_ids=(1, 2),
    max_tokens=16,
    heads=(),
    cache_policy=CachePolicy(),
    admission=ADMISSION,
    arrived_at_s=_ARRIVED_AT_S,
    admitted_at_s=_ARRIVED_AT_S + 0.25,
    prepared_at_s=_ARRIVED_AT_S + 0.5,
    first_token_at_s=_ARRIVED_AT_S + 1.0,
    ended_at_s=_ARRIVED_AT_S + 2.0,
)


def record(tokens: Sequence[int], *, tenant: str = "default", **more: Any) -> RequestRecord:
    """A request with these prompt tokens."""
    prompt = TokenLedger(Identity(b"epoch", tenant), tokens)
    admission = replace(ADMISSION, prompt_tokens=len(prompt))
    return replace(_RECORD, tenant=tenant, prompt=prompt, **{"admission": admission, **more})


class Counts:
    """Counts like the metrics, and can wait for the next line."""

    def __init__(self) -> None:
        self.lost: list[LogLoss] = []
        self._written = threading.Semaphore(0)
        self._lost = threading.Semaphore(0)

    def log_line_written(self) -> None:
        self._written.release()

    def log_line_lost(self, reason: LogLoss) -> None:
        self.lost.append(reason)
        self._lost.release()

    def wait_written(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._written.acquire(timeout=TIMEOUT_S), "no line was written"

    def wait_lost(self) -> None:
        assert self._lost.acquire(timeout=TIMEOUT_S), "no line was lost"


def write_log(path: Path, records: Sequence[RequestRecord], **file: Any) -> None:
    """Log these requests and close the log."""
    log = RequestLog(LogFile(path, **file), FACTS)
    for one in records:
        log.request_ended(one)
    assert log.close(TIMEOUT_S)
