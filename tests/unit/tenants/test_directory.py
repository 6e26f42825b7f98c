"""A changed key file is used at once if it is valid, and logged if it is not."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.states.quota import Quota
from kvreg_service.tenants.directory import POLL_INTERVAL_S, KeySource, TenantDirectory


def document(**tenants: Any) -> str:
    return json.dumps({"tenants": tenants})


ALPHA = document(alpha={"keys": ["a1"], "entries": 1, "pages": 10})
BETA = document(beta={"keys": ["b1"], "entries": 2, "pages": 20})


class Engine:
    """Records the quotas, or rejects them."""

    def __init__(self) -> None:
        self.quotas: list[dict[str, Quota]] = []
        self.is_refusing = False

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        if self.is_refusing:
            raise ConfigurationError("too much")
        self.quotas.append(dict(quotas))


class Clock:
    """A clock that advances only with ``pass_interval``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_interval(self) -> None:
        self.now_s += POLL_INTERVAL_S


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(ALPHA)
    return path


@pytest.fixture
def directory(path: Path, engine: Engine, clock: Clock) -> TenantDirectory:
    return TenantDirectory(KeySource(file=path), engine.set_quotas, clock)


def known(directory: TenantDirectory) -> list[str]:
    found = [directory.find(key) for key in ("a1", "b1")]
    return [tenant.name for tenant in found if tenant is not None]


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


def test_without_configured_keys_all_callers_are_one_administrator(engine: Engine) -> None:
    directory = TenantDirectory(KeySource(), engine.set_quotas)
    tenant = directory.find("whatever")
    assert not directory.needs_keys
    assert tenant is not None
    assert (tenant.name, tenant.is_admin) == ("default", True)
    assert engine.quotas == []


def test_quotas_reach_the_engine_at_the_start(directory: TenantDirectory, engine: Engine) -> None:
    assert known(directory) == ["alpha"]
    assert engine.quotas == [{"alpha": Quota(1, 10)}]


def test_keys_may_come_as_text(engine: Engine) -> None:
    directory = TenantDirectory(KeySource(text=SecretStr(ALPHA)), engine.set_quotas)
    assert known(directory) == ["alpha"]


def test_changed_file_replaces_keys_and_quotas(
    directory: TenantDirectory, path: Path, engine: Engine, clock: Clock
) -> None:
    path.write_text(BETA)
    clock.pass_interval()
    assert known(directory) == ["beta"]
    assert engine.quotas[1:] == [{"beta": Quota(2, 20)}]


def test_file_is_not_read_between_two_checks(
    directory: TenantDirectory, path: Path, clock: Clock
) -> None:
    path.write_text(BETA)
    clock.now_s += POLL_INTERVAL_S / 2
    assert known(directory) == ["alpha"]


def test_change_that_keeps_times_and_size_is_detected(
    directory: TenantDirectory, path: Path, clock: Clock
) -> None:
    before = path.stat()
    path.write_text(ALPHA.replace("a1", "b1"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    clock.pass_interval()
    assert directory.find("a1") is None
    assert directory.find("b1") is not None


def test_swapped_symbolic_link_is_followed(tmp_path: Path, engine: Engine, clock: Clock) -> None:
    # Kubernetes changes a mounted Secret in this way.
    for name, text in (("v1", ALPHA), ("v2", BETA)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys.json").write_text(text)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    directory = TenantDirectory(KeySource(tmp_path / "keys.json"), engine.set_quotas, clock)
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    clock.pass_interval()
    assert known(directory) == ["beta"]


def test_unchanged_file_leaves_the_quotas_alone(
    directory: TenantDirectory, engine: Engine, clock: Clock
) -> None:
    clock.pass_interval()
    assert known(directory) == ["alpha"]
    assert len(engine.quotas) == 1


@pytest.mark.parametrize("text", ["{", document(alpha={"keys": [""]})], ids=["broken", "invalid"])
def test_invalid_file_is_logged_once_and_changes_nothing(
    directory: TenantDirectory,
    path: Path,
    engine: Engine,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    text: str,
) -> None:
    path.write_text(text)
    for _ in range(3):
        clock.pass_interval()
        assert known(directory) == ["alpha"]
    (message,) = errors_of(caplog)
    assert str(path) in message
    assert len(engine.quotas) == 1


def test_quotas_that_the_engine_refuses_change_nothing(
    directory: TenantDirectory,
    path: Path,
    engine: Engine,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.is_refusing = True
    path.write_text(BETA)
    clock.pass_interval()
    assert known(directory) == ["alpha"]
    (message,) = errors_of(caplog)
    assert "too much" in message


def test_missing_file_is_logged_and_changes_nothing(
    directory: TenantDirectory, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    for _ in range(2):
        clock.pass_interval()
        assert known(directory) == ["alpha"]
    assert len(errors_of(caplog)) == 1


def test_valid_file_after_an_invalid_one_is_used(
    directory: TenantDirectory, path: Path, clock: Clock
) -> None:
    path.write_text("{")
    clock.pass_interval()
    assert known(directory) == ["alpha"]
    path.write_text(BETA)
    clock.pass_interval()
    assert known(directory) == ["beta"]


def test_log_shows_no_key(
    directory: TenantDirectory, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for text in (document(beta={"keys": ["sk-secret"]}), '{"tenants": {"sk-secret": ["sk-secret"]'):
        path.write_text(text)
        clock.pass_interval()
        directory.find("sk-secret")
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


def test_document_without_keys_rejects_all_requests_and_is_logged(
    path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(document())
    directory = TenantDirectory(KeySource(file=path), engine.set_quotas)
    assert directory.needs_keys
    assert known(directory) == []
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_changed_file_without_keys_rejects_all_requests_and_is_logged(
    directory: TenantDirectory, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(document())
    clock.pass_interval()
    assert known(directory) == []
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_an_irregular_file_is_not_reported_as_missing(
    directory: TenantDirectory, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    path.mkdir()
    clock.pass_interval()
    assert known(directory) == ["alpha"]
    (message,) = errors_of(caplog)
    assert "is not a regular file" in message


@pytest.mark.parametrize("name", ["absent.json", "folder.json", "large.json"])
def test_file_that_cannot_be_read_stops_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "large.json").write_text(" " * (1 << 20) + ALPHA)
    with pytest.raises(ConfigurationError, match=name):
        KeySource(file=tmp_path / name).require_valid()


def test_quotas_that_the_engine_refuses_stop_the_start(path: Path, engine: Engine) -> None:
    engine.is_refusing = True
    with pytest.raises(ConfigurationError, match="too much"):
        TenantDirectory(KeySource(file=path), engine.set_quotas)
