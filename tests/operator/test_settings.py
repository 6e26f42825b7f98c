"""The process is configured by its environment, and reports every problem with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg_operator.settings import ENV_PREFIX, InvalidSettings, load_settings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_OPERATOR_NAMESPACES", "serving")


def problems() -> str:
    with pytest.raises(InvalidSettings) as caught:
        load_settings()
    return str(caught.value)


def test_default_listens_on_this_machine_only() -> None:
    settings = load_settings()
    assert (settings.host, settings.metrics_port, settings.liveness_port) == (
        "127.0.0.1",
        9090,
        8080,
    )
    assert (settings.resync_s, settings.deaf_after_s, settings.api_key_file) == (30, 60, None)


def test_namespaces_are_split_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_OPERATOR_NAMESPACES", " serving, other,serving,")
    assert load_settings().namespaces == ("serving", "other")


def test_namespaces_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVREG_OPERATOR_NAMESPACES")
    assert "KVREG_OPERATOR_NAMESPACES: is required" in problems()


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("NAMESPACES", "*", "without patterns"),
        ("NAMESPACES", "Serving", "without patterns"),
        ("NAMESPACES", ",", "at least 1"),
        ("METRICS_PORT", "70000", "65535"),
        ("LIVENESS_PORT", "0", "1"),
        ("RESYNC_S", "0", "greater than 0"),
        ("DEAF_AFTER_S", "nan", "finite"),
        ("LOG_LEVEL", "loud", "'warning'"),
        ("API_KEY_FILE", "/does/not/exist", "must be a file"),
    ],
)
def test_wrong_value_is_named_with_its_limit(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, limit: str
) -> None:
    monkeypatch.setenv(ENV_PREFIX + name, value)
    text = problems()
    assert f"{ENV_PREFIX}{name}" in text
    assert limit in text
    assert value.strip(",") in text


def test_every_problem_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_OPERATOR_METRICS_PORT", "0")
    monkeypatch.setenv("KVREG_OPERATOR_RESYNC", "3")
    text = problems()
    assert "KVREG_OPERATOR_METRICS_PORT" in text
    assert "KVREG_OPERATOR_RESYNC: there is no such setting" in text


def test_variable_of_a_service_link_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_OPERATOR_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    assert "enableServiceLinks" in problems()


def test_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_OPERATOR_API_KEY_FILE", "")
    assert load_settings().api_key_file is None


def test_key_file_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch()
    monkeypatch.setenv("KVREG_OPERATOR_API_KEY_FILE", str(path))
    assert load_settings().api_key_file == path
