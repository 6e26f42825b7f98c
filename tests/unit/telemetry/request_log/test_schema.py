"""Schema, document and code of the request log agree."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.unit.telemetry.request_log.log_reading import PrefixReader, read_lines
from tests.unit.telemetry.request_log.log_records import FACTS, TIMEOUT_S, record
from tests.unit.telemetry.request_log.schema_document import DOCUMENT, read_schema, tables, written

from kvreg_service.core import events
from kvreg_service.core.ids import LaneId, RequestId, SessionId, StateId
from kvreg_service.core.labels import (
    Attach,
    EvictionReason,
    FinishReason,
    Outcome,
    ReusePath,
    StateKind,
    Tail,
)
from kvreg_service.telemetry.request_log.lines import SCHEMA_VERSION, EngineFacts
from kvreg_service.telemetry.request_log.request_log import LogFile, RequestLog

SCHEMA = read_schema()
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA, validate_formats=True)
KINDS = {kind["title"]: kind["properties"] for kind in SCHEMA["oneOf"]}

_EVENTS = (
    events.Detached(SessionId(1), LaneId(0), 2, 4000),
    *(
        events.Attached(RequestId("r"), SessionId(1), LaneId(0), path)
        for path in ReusePath
        if path is not ReusePath.FULL_RESET
    ),
    *(
        events.StateKept(StateId(1), SessionId(1), RequestId("r"), kind, 9, False)
        for kind in StateKind
    ),
    *(
        events.Evicted(StateId(1), SessionId(1), StateKind.TURN, reason, "tenant", 9, 4000)
        for reason in EvictionReason
    ),
    events.PinEnded(SessionId(1)),
)


@pytest.fixture
def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """One line for each kind of event, the lines about the engine, and two requests."""
    path = tmp_path / "requests.jsonl"
    log = RequestLog(LogFile(path, max_bytes=3000, max_files=100), FACTS)
    log.request_ended(record([1] * 200, turn_boundary=130, heads=(70,), kept_at=(130, 201)))
    log.request_ended(record([1] * 200, admission=None, output_ids=(), finish_reason=None))
    for event in _EVENTS:
        log.registry_changed(event)
    assert log.close(TIMEOUT_S)
    return [line for one in tmp_path.iterdir() for line in read_lines(one)]


def test_every_line_matches_the_schema(lines: list[dict[str, Any]]) -> None:
    assert [line for line in lines if not VALIDATOR.is_valid(line)] == []


def test_every_form_of_the_schema_occurs(lines: list[dict[str, Any]]) -> None:
    seen = [
        sum(jsonschema_rs.is_valid(kind, line) for line in lines) > 0 for kind in SCHEMA["oneOf"]
    ]
    assert all(seen)


def test_a_field_that_the_schema_does_not_know_is_refused(lines: list[dict[str, Any]]) -> None:
    assert not VALIDATOR.is_valid({**lines[0], "text": "Hello"})


@pytest.mark.parametrize(
    ("title", "field", "values"),
    [
        ("Request", "outcome", Outcome),
        ("Request", "finish_reason", (*FinishReason, None)),
        ("Request", "tail", Tail),
        ("Request", "reuse_path", (*ReusePath, None)),
        ("Request", "attach", (*Attach, None)),
        (
            "Registry: attach",
            "reuse_path",
            tuple(path for path in ReusePath if path is not ReusePath.FULL_RESET),
        ),
        ("Registry: keep", "state_kind", StateKind),
        ("Registry: evict", "state_kind", StateKind),
        ("Registry: evict", "reason", EvictionReason),
    ],
)
def test_closed_sets_are_those_of_the_code(
    title: str, field: str, values: tuple[str | None, ...]
) -> None:
    assert set(KINDS[title][field]["enum"]) == set(values)


def test_the_line_about_the_engine_has_all_facts() -> None:
    assert {field.name for field in fields(EngineFacts)} <= set(KINDS["Engine"])


def test_versions_agree() -> None:
    assert {kind["schema_version"]["const"] for kind in KINDS.values()} == {SCHEMA_VERSION}


def test_the_document_shows_the_fields_of_the_schema() -> None:
    # `python -m tests.unit.telemetry.request_log.schema_document` writes them.
    assert written(DOCUMENT.read_text()) == tables(SCHEMA).strip()


def examples() -> list[dict[str, Any]]:
    found = re.findall(r"^\{\"schema_version\".*\}$", DOCUMENT.read_text(), flags=re.MULTILINE)
    return [json.loads(line) for line in found]


def test_the_examples_of_the_document_are_lines() -> None:
    assert [line for line in examples() if not VALIDATOR.is_valid(line)] == []


def test_the_examples_of_the_document_show_every_kind() -> None:
    assert {line["kind"] for line in examples()} == {"engine", "request", "registry"}


def test_the_examples_of_the_document_show_a_turn_that_begins_with_the_one_before() -> None:
    first, *_, second = (reader := PrefixReader(examples())).requests
    assert reader.longest_reuse(second, [first]) == second["cached_tokens"] > 0
