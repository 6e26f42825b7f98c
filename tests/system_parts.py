"""External programs that some tests need: how to find them, and what happens without them.

Owns the list of programs and their origin: Debian packages (``make system-deps``) or builds with Go
(``make cluster-programs``). On a developer's machine a test without its program is skipped, and the
summary of the run counts the skips. In CI it fails, because a skip there would look like a pass.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest
from tests.cluster.harness.places import find_binaries

PACKAGES = {"prometheus": "prometheus", "promtool": "prometheus", "chromium": "chromium"}
"""The Debian package of each program that has one."""

BUILT = frozenset({"helm"})
"""Programs that ``make cluster-programs`` builds."""

_MISSING = "missing system part: "


def require_part(program: str) -> str:
    """Return the path of a program; if it is missing, skip the calling test, or fail it in CI.

    Raises:
        KeyError: The program is not in the list.
    """
    if program in BUILT:
        path = shutil.which(program, path=str(find_binaries())) or shutil.which(program)
        origin = "`make cluster-programs`, which needs Go"
    else:
        path = shutil.which(program)
        origin = f"Debian package {PACKAGES[program]}; `make system-deps`"
    if path is not None:
        return path
    _give_up(f"{_MISSING}{program} ({origin})")


def count_missing(reasons: Iterable[str]) -> Counter[str]:
    """Count the tests that were skipped for lack of a program, by the reason of the skip."""
    return Counter(
        _MISSING + reason.partition(_MISSING)[2] for reason in reasons if _MISSING in reason
    )


def report_missing(terminal: Any) -> None:
    """Print at the end of a run how many tests were skipped for lack of which program."""
    # The report of a skip holds the file, the line and the reason.
    skipped = [report.longrepr for report in terminal.stats.get("skipped", ())]
    missing = count_missing(place[2] for place in skipped if isinstance(place, tuple))
    if missing:
        terminal.section("tests that did not run", sep="=", yellow=True, bold=True)
        for reason, number in missing.items():
            terminal.line(f"{number} skipped, {reason}", yellow=True)


def is_ci() -> bool:
    """Return whether this is CI, where a missing program is a failure."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def _give_up(reason: str) -> NoReturn:
    if not is_ci():
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)
