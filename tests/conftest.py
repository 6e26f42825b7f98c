"""Checks that slow tests have a reason, and prints which tests lacked a program."""

from __future__ import annotations

from typing import Any

import pytest
from tests.slow_marks import require_reason
from tests.system_parts import report_missing


def pytest_runtest_setup(item: pytest.Item) -> None:
    require_reason(item)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_missing(terminalreporter)
