"""Records of finished requests with different outcomes, as an engine makes them."""

from __future__ import annotations

from dataclasses import replace

from kvreg_service.core.ids import LaneId, SessionId
from kvreg_service.core.labels import Attach, FinishReason, Outcome, ReusePath, Tail
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Admission, CachePolicy
from kvreg_service.engine.interface.record import RequestRecord

SECRET = "tenant-of-secrets"

FINISHED = RequestRecord(
    request_id="chatcmpl-1",
    tenant=SECRET,
    session=b"session",
    outcome=Outcome.FINISHED,
    error_code=None,
    finish_reason=FinishReason.STOP,
    tail=Tail.ASSISTANT,
    prompt=TokenLedger(Identity(b"epoch", SECRET), range(100)),
    output_ids=(1, 2, 3),
    max_tokens=16,
    heads=(),
    cache_policy=CachePolicy(),
    admission=Admission(
        lane=LaneId(1),
        session_id=SessionId(7),
        prompt_tokens=100,
        reuse_path=ReusePath.APPEND_FRONTIER,
        attach=Attach.REGISTRY,
        cached_tokens=90,
        queue_s=0.5,
        gap_s=8.0,
    ),
    arrived_at_s=10.0,
    admitted_at_s=10.5,
    prepared_at_s=10.75,
    first_token_at_s=11.5,
    ended_at_s=14.0,
    turn_boundary=98,
)

FAILED = replace(
    FINISHED,
    outcome=Outcome.FAILED,
    error_code="request_failed",
    finish_reason=None,
    output_ids=(),
    first_token_at_s=None,
)

TIMED_OUT = replace(
    FAILED,
    error_code="request_queue_timeout",
    admission=None,
    admitted_at_s=None,
    prepared_at_s=None,
)

CANCELLED = replace(FINISHED, outcome=Outcome.CANCELLED, finish_reason=None)
