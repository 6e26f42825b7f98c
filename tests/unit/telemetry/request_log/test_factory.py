"""The settings decide whether there is a log, its path and its salt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.telemetry.request_log.log_reading import Line, read_lines
from tests.unit.telemetry.request_log.log_records import TIMEOUT_S, record

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.engine.reservation import plan_cpu
from kvreg_service.engine_options import engine_options
from kvreg_service.model.config import ModelConfig
from kvreg_service.settings import load_settings
from kvreg_service.telemetry.request_log.factory import open_request_log
from kvreg_service.telemetry.request_log.request_log import RequestLog

SALT = "a salt of some length"


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("KVREG_")]:
        monkeypatch.delenv(name)


def open_log(**flags: Any) -> RequestLog | None:
    settings = load_settings(flags)
    options = engine_options(settings)
    plan = plan_cpu(ModelConfig.from_path(settings.model), options)
    return open_request_log(settings, options, plan)


def logged(path: Path, **flags: Any) -> list[Line]:
    log = open_log(request_log=str(path), **flags)
    assert log is not None
    log.request_ended(record([1] * 100))
    assert log.close(TIMEOUT_S)
    return read_lines(path)


def test_without_a_file_there_is_no_log() -> None:
    assert open_log() is None


def test_the_log_describes_the_configured_engine(tmp_path: Path) -> None:
    engine = logged(tmp_path / "log", lanes="3", entries="2", current_state="drop", anchors="1")[0]
    told = {name: engine[name] for name in ("lanes", "entries", "current_state", "anchors")}
    assert told == {"lanes": 3, "entries": 2, "current_state": "drop", "anchors": 1}


def test_the_salt_of_the_environment_makes_names_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVREG_REQUEST_LOG_SALT", SALT)
    first, second = (logged(tmp_path / name) for name in "ab")
    assert first[0]["salt"] == "kept"
    assert first[1]["session"] == second[1]["session"]


def test_hashes_are_of_one_process_by_default(tmp_path: Path) -> None:
    first, second = (logged(tmp_path / name) for name in "ab")
    assert first[0]["salt"] == "random"
    assert first[1]["session"] != second[1]["session"]


def test_a_salt_that_can_be_guessed_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVREG_REQUEST_LOG_SALT", "too-short")
    with pytest.raises(ConfigurationError, match="request_log_salt") as refused:
        load_settings()
    assert "too-short" not in str(refused.value)


def test_a_salt_is_not_shown_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_REQUEST_LOG_SALT", SALT)
    assert SALT not in repr(load_settings())


def test_the_log_changes_no_profile() -> None:
    with_log = load_settings({"request_log": "requests.jsonl"})
    assert with_log.profile_hash == load_settings().profile_hash
