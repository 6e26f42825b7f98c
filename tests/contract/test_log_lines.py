"""Engine and operator write the same log format: one parser reads both."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from kvreg_operator import json_log as operator_log
from kvreg_service import json_log as service_log

BUILDERS = {
    "engine": service_log.build_formatter,
    "operator": operator_log.build_formatter,
}
every_program = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)

Build = Callable[[], logging.Formatter]


def make_record(
    message: str, *args: object, exc_info: Any = None, **extra: object
) -> logging.LogRecord:
    logger = logging.getLogger("kvreg.test")
    return logger.makeRecord(
        logger.name, logging.WARNING, "file.py", 7, message, args, exc_info, "function", extra
    )


def expected_line(record: logging.LogRecord, extra: Mapping[str, object]) -> dict[str, object]:
    """Return the expected JSON object of a log line."""
    line: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage(),
        **extra,
    }
    if record.exc_info:
        line["exception"] = logging.Formatter().formatException(record.exc_info)
    return line


@every_program
@pytest.mark.parametrize(
    ("args", "extra"),
    [
        (("plain",), {}),
        (("%s of %d", "one", 2), {}),
        (("with fields",), {"request_id": "r-1", "total_s": 0.25, "code": None, "stream": True}),
        (("ünïcode 漢字 \u2028",), {"profile": "serving/größe"}),
    ],
    ids=["plain", "arguments", "fields", "unicode"],
)
def test_line_has_the_expected_keys_and_values(
    build: Build, args: tuple[str, ...], extra: Mapping[str, object]
) -> None:
    record = make_record(*args, **extra)
    assert json.loads(build().format(record)) == expected_line(record, extra)


@every_program
def test_exception_is_a_single_string(build: Build) -> None:
    try:
        raise ValueError("an odd value")
    except ValueError:
        record = make_record("failed", exc_info=sys.exc_info(), code="internal_error")
    line = json.loads(build().format(record))
    assert line == expected_line(record, {"code": "internal_error"})
    assert line["exception"].endswith("ValueError: an odd value")


@every_program
def test_record_is_one_line_that_begins_with_the_time(build: Build) -> None:
    text = build().format(make_record("two\nlines", detail="more\nlines"))
    assert "\n" not in text
    assert list(json.loads(text))[:4] == ["time", "level", "logger", "message"]


@every_program
def test_non_ascii_text_is_not_escaped(build: Build) -> None:
    assert "größe" in build().format(make_record("größe"))


def test_extra_fields_of_libraries_are_omitted() -> None:
    kopf = make_record("retrying", k8s_ref={"name": "a"}, k8s_skip=True, settings=object())
    uvicorn = make_record("started", color_message="\x1b[36mstarted")
    operator, engine = operator_log.build_formatter(), service_log.build_formatter()
    assert json.loads(operator.format(kopf)) == expected_line(kopf, {})
    assert json.loads(engine.format(uvicorn)) == expected_line(uvicorn, {})
