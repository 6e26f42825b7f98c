"""The request log of a scripted run is valid, complete and sufficient for a replay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from request_log_script import WORDS, LoggedEngine, play
from tests.unit.telemetry.request_log.log_reading import Line, PrefixReader, read_lines

from kvreg_service.engine.build import LoadedModel

_SCHEMA = json.loads(
    resources.files("kvreg_service.telemetry.request_log").joinpath("schema.json").read_text()
)


class Played:
    """The log of the script, and the admissions that its clients received."""

    def __init__(self, logged: LoggedEngine, path: Path) -> None:
        self.admissions = logged.admissions
        self.text = path.read_text()
        self.lines = read_lines(path)
        self.requests = [line for line in self.lines if line["kind"] == "request"]
        self.registry = [line for line in self.lines if line["kind"] == "registry"]

    def values(self, field: str) -> set[Any]:
        return {line[field] for line in self.requests}


@pytest.fixture(scope="module")
def played(reference: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Played:
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    logged = LoggedEngine(reference, path)
    try:
        play(logged)
    finally:
        logged.close()
    return Played(logged, path)


def test_every_line_matches_the_schema(played: Played) -> None:
    validator = jsonschema_rs.Draft202012Validator(_SCHEMA, validate_formats=True)
    assert [line for line in played.lines if not validator.is_valid(line)] == []


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("outcome", {"finished", "failed", "cancelled"}),
        ("tail", {"user", "assistant", "tool", "system"}),
        ("attach", {"none", "registry", "anchor", None}),
        ("error_code", {None, "request_failed", "request_queue_timeout"}),
        (
            "reuse_path",
            {
                None,
                "full_reset",
                "append_frontier",
                "restore_turn_checkpoint",
                "restore_response_checkpoint",
                "restore_anchor",
            },
        ),
    ],
)
def test_the_script_covers_all_values_of_a_field(
    played: Played, field: str, values: set[Any]
) -> None:
    assert played.values(field) == values


def test_the_script_covers_all_registry_events(played: Played) -> None:
    assert {line["event"] for line in played.registry} >= {
        "detach", "exchange", "fork", "evict", "anchor",
    }  # fmt: skip


def test_each_request_has_one_line_that_matches_its_admission(played: Played) -> None:
    logged = {
        line["request_id"]: (line["prompt_tokens"], line["cached_tokens"], line["reuse_path"])
        for line in played.requests
        if line["request_id"] in played.admissions
    }
    assert logged == {
        request_id: (one.prompt_tokens, one.cached_tokens, one.reuse_path)
        for request_id, one in played.admissions.items()
    }


def test_no_line_is_missing(played: Played) -> None:
    numbers = [line["number"] for line in played.lines if line["kind"] != "engine"]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_log_contains_no_message_text(played: Played) -> None:
    assert [word for word in WORDS if word in played.text] == []


def test_every_reuse_can_be_derived_from_the_log_alone(played: Played) -> None:
    reader = PrefixReader(played.requests)
    underivable = {
        line["request_id"]: line["cached_tokens"]
        for index, line in enumerate(played.requests)
        if (line["cached_tokens"] or 0) > reader.longest_reuse(line, played.requests[:index])
    }
    assert underivable == {}


def test_attach_logs_the_bytes_of_the_preceding_detach_or_fork(played: Played) -> None:
    held: Counter[int] = Counter()
    for line in played.registry:
        if line["event"] in ("detach", "fork"):
            held[line["sequence"]] = line["bytes"]
        if line["event"] in ("attach", "exchange"):
            assert line["bytes"] == held[line["sequence"]]


def sessions_of(lines: list[Line]) -> Iterator[tuple[str, str]]:
    return ((line["tenant"], line["session"]) for line in lines)


def test_turns_of_one_conversation_share_a_session(played: Played) -> None:
    by_session = Counter(sessions_of(played.requests))
    assert by_session.most_common(1)[0][1] == 7


def test_a_round_of_a_tool_loop_logs_turn_and_round_boundary(played: Played) -> None:
    line = next(line for line in played.requests if line["tail"] == "tool")
    assert line["turn_boundary"] == line["boundary"] < line["round_boundary"]


def test_a_continued_answer_logs_a_response_boundary(played: Played) -> None:
    kinds = {line["boundary_kind"] for line in played.requests if line["tail"] == "assistant"}
    assert kinds == {"response"}
