"""The daemons of the test cluster: start, kill by another process, and the error at start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness.daemons import Daemon, DaemonFailed


def test_daemon_can_be_killed_through_another_object_with_the_same_log(tmp_path: Path) -> None:
    first, second = (Daemon("sleeper", ["sleep", "60"], tmp_path / "log") for _ in range(2))
    first.start()
    assert second.is_running()
    second.kill()
    assert not first.is_running()
    assert not second.is_running()


def test_killed_daemon_can_be_started_again(tmp_path: Path) -> None:
    daemon = Daemon("sleeper", ["sleep", "60"], tmp_path / "log")
    for _ in range(2):
        daemon.start()
        assert daemon.is_running()
        daemon.kill()
        assert not daemon.is_running()


def test_daemon_that_was_never_started_is_not_running(tmp_path: Path) -> None:
    daemon = Daemon("never-started", ["true"], tmp_path / "log")
    daemon.kill()
    assert not daemon.is_running()


def test_daemon_that_exits_early_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    daemon = Daemon("broken", ["sh", "-c", "echo no such port >&2; exit 3"], tmp_path / "log")
    daemon.start()
    with pytest.raises(DaemonFailed, match="broken has ended:\nno such port"):
        daemon.wait_until(lambda: False, timeout_s=30)
