"""Says aloud which tests of a run did not run for want of a system part."""

from __future__ import annotations

from typing import Any

from tests.system_parts import report_missing


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_missing(terminalreporter)
