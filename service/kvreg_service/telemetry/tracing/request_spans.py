"""The spans of one request: their names, times and attributes.

Owns the attributes, which follow OpenTelemetry's semantic conventions for generative AI and contain
neither text nor the name of a tenant. It does not sample or export, and does not import
OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kvreg_service.core.labels import Outcome
from kvreg_service.core.requests.request import Admission
from kvreg_service.engine.interface.record import RequestRecord

# The last release of the conventions that contains those for generative AI. They have moved to a
# repository without releases; the names below are the same there.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"

SpanResult = Literal["exported", "dropped"]
"""Whether a span was exported."""

Value = str | bool | int | float | tuple[str, ...]


@dataclass(frozen=True)
class SpanDraft:
    """One span. Times are seconds of the monotonic clock, ``start_s`` <= ``end_s``."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Value]


@dataclass(frozen=True)
class TraceDraft:
    """The spans of one request: the root span, and its child spans in order.

    ``error_code`` is None unless the request failed. ``trace_parent`` is the header of the caller.
    """

    whole: SpanDraft
    parts: tuple[SpanDraft, ...]
    error_code: str | None
    trace_parent: str | None

    @property
    def num_spans(self) -> int:
        """The number of spans."""
        return 1 + len(self.parts)


def draft_trace(record: RequestRecord, model: str) -> TraceDraft:
    """Return the spans of a finished request, without a reference to its prompt."""
    parts = tuple(_parts(record))
    return TraceDraft(
        whole=SpanDraft(
            name=f"chat {model}",
            start_s=record.arrived_at_s,
            # A step reads the clock before it accepts the requests that arrived in the meantime.
            end_s=max(record.ended_at_s, parts[-1].end_s),
            attributes=dict(_attributes(record, model)),
        ),
        parts=parts,
        error_code=record.error_code if record.outcome is Outcome.FAILED else None,
        trace_parent=record.trace_parent,
    )


def _parts(record: RequestRecord) -> Iterator[SpanDraft]:
    """Yield a span for each phase that the request reached; it ended in the last one."""
    starts = (
        ("queue", record.arrived_at_s),
        ("attach", record.admitted_at_s),
        ("prefill", record.prepared_at_s),
        ("decode", record.first_token_at_s),
    )
    reached = [(name, start_s) for name, start_s in starts if start_s is not None]
    ends_s = [start_s for _, start_s in reached[1:]] + [record.ended_at_s]
    details = _details(record)
    start_s = record.arrived_at_s
    for (name, _), end_s in zip(reached, ends_s, strict=True):
        end_s = max(start_s, end_s)
        yield SpanDraft(name, start_s, end_s, details.get(name, {}))
        start_s = end_s


def _details(record: RequestRecord) -> dict[str, dict[str, Value]]:
    admission = record.admission
    if admission is None:
        return {}
    return {
        "attach": {"kvreg.lane": admission.lane, "kvreg.attach": admission.attach},
        "prefill": {
            "kvreg.cached_tokens": admission.cached_tokens,
            "kvreg.computed_tokens": admission.computed_tokens,
        },
        "decode": {"gen_ai.usage.output_tokens": len(record.output_ids)},
    }


def _attributes(record: RequestRecord, model: str) -> Iterator[tuple[str, Value]]:
    yield "gen_ai.operation.name", "chat"
    yield "gen_ai.provider.name", "kvreg"
    yield "gen_ai.request.model", model
    yield "gen_ai.request.max_tokens", record.max_tokens
    yield "gen_ai.response.id", record.request_id
    yield "gen_ai.response.model", model
    if record.finish_reason is not None:
        yield "gen_ai.response.finish_reasons", (record.finish_reason,)
    yield "gen_ai.usage.input_tokens", record.prompt_tokens
    yield "gen_ai.usage.output_tokens", len(record.output_ids)
    if record.error_code is not None:
        yield "error.type", record.error_code
    yield "kvreg.outcome", record.outcome
    yield "kvreg.tail", record.tail
    yield "kvreg.retain", record.cache_policy.retain
    if record.admission is not None:
        yield from _reuse(record.admission)


def _reuse(admission: Admission) -> Iterator[tuple[str, Value]]:
    yield "gen_ai.usage.cache_read.input_tokens", admission.cached_tokens
    yield "kvreg.reuse_path", admission.reuse_path
    yield "kvreg.attach", admission.attach
    yield "kvreg.lane", admission.lane
    yield "kvreg.session", admission.session_id
    yield "kvreg.cached_tokens", admission.cached_tokens
    yield "kvreg.computed_tokens", admission.computed_tokens
    yield "kvreg.regret_tokens", admission.regret_tokens
    if admission.gap_s is not None:
        yield "kvreg.reuse_gap_s", admission.gap_s
    if admission.diverged_at is not None:
        yield "kvreg.diverged_at", admission.diverged_at
