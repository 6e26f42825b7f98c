"""The attributes of the spans of a request, and their times."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from tests.unit.telemetry.ended_requests import CANCELLED, FAILED, FINISHED, SECRET, TIMED_OUT

from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.tracing.request_spans import SpanDraft, draft_trace

ALL = (FINISHED, FAILED, TIMED_OUT, CANCELLED)


def parts_of(record: RequestRecord) -> list[tuple[str, float, float]]:
    return [(p.name, p.start_s, p.end_s) for p in draft_trace(record, "tiny").parts]


def test_parts_lie_behind_each_other_and_fill_the_request() -> None:
    assert parts_of(FINISHED) == [
        ("queue", 10.0, 10.5),
        ("attach", 10.5, 10.75),
        ("prefill", 10.75, 11.5),
        ("decode", 11.5, 14.0),
    ]


def test_request_that_ends_in_the_queue_has_no_other_part() -> None:
    assert parts_of(TIMED_OUT) == [("queue", 10.0, 14.0)]


def test_part_in_which_a_request_fails_lasts_to_its_end() -> None:
    assert parts_of(FAILED)[-1] == ("prefill", 10.75, 14.0)


def test_time_that_a_step_read_too_early_makes_no_negative_part() -> None:
    record = replace(FINISHED, admitted_at_s=9.9, prepared_at_s=9.9)
    assert parts_of(record)[:3] == [
        ("queue", 10.0, 10.0),
        ("attach", 10.0, 10.0),
        ("prefill", 10.0, 11.5),
    ]


def test_attributes_follow_the_semantic_conventions() -> None:
    whole = draft_trace(FINISHED, "tiny").whole
    assert whole.name == "chat tiny"
    assert {k: v for k, v in whole.attributes.items() if k.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "kvreg",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 90,
    }


def test_reuse_has_attributes_of_kvreg() -> None:
    whole = draft_trace(FINISHED, "tiny").whole
    assert {k: v for k, v in whole.attributes.items() if k.startswith("kvreg.")} == {
        "kvreg.outcome": "finished",
        "kvreg.tail": "assistant",
        "kvreg.retain": True,
        "kvreg.reuse_path": "append_frontier",
        "kvreg.attach": "registry",
        "kvreg.lane": 1,
        "kvreg.session": 7,
        "kvreg.cached_tokens": 90,
        "kvreg.computed_tokens": 10,
        "kvreg.regret_tokens": 0,
        "kvreg.reuse_gap_s": 8.0,
    }


@pytest.mark.parametrize("record", ALL, ids=lambda record: str(record.error_code))
def test_every_gen_ai_attribute_is_one_of_the_conventions(record: RequestRecord) -> None:
    theirs = importlib.import_module(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes"
    )
    known = {value for name, value in vars(theirs).items() if name.startswith("GEN_AI_")}
    draft = draft_trace(record, "tiny")
    used = {name for span in (draft.whole, *draft.parts) for name in span.attributes}
    assert {name for name in used if not name.startswith("kvreg.")} <= known | {"error.type"}


@pytest.mark.parametrize("record", ALL, ids=lambda record: str(record.error_code))
def test_no_tenant_is_named(record: RequestRecord) -> None:
    assert SECRET not in repr(draft_trace(record, "tiny"))


def test_failure_has_its_code() -> None:
    draft = draft_trace(FAILED, "tiny")
    assert draft.error_code == "request_failed"
    assert draft.whole.attributes["error.type"] == "request_failed"


def test_a_cancelled_request_is_not_a_failure() -> None:
    draft = draft_trace(CANCELLED, "tiny")
    assert draft.error_code is None
    assert "error.type" not in draft.whole.attributes


def test_child_spans_have_attributes() -> None:
    parts: dict[str, SpanDraft] = {p.name: p for p in draft_trace(FINISHED, "tiny").parts}
    assert parts["attach"].attributes == {"kvreg.lane": 1, "kvreg.attach": "registry"}
    assert parts["prefill"].attributes == {"kvreg.cached_tokens": 90, "kvreg.computed_tokens": 10}
    assert parts["decode"].attributes == {"gen_ai.usage.output_tokens": 3}
