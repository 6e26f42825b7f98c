"""Prints which tests of a run were skipped for lack of a program."""

from __future__ import annotations

from typing import Any

from tests.system_parts import report_missing


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_missing(terminalreporter)
