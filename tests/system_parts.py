"""Programs beside Python that some tests drive: where they are, and what it means when one is not.

Owns the list of programs and what brings them: Debian packages, by ``make system-deps``, or Go, by
``make cluster-programs``. On a developer's machine a test without its program is skipped, and the
end of the run says how many were. In CI it fails: a skip there would look like a pass.
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
"""Programs that are built beside those of the cluster."""

_MISSING = "missing system part: "


def require_part(program: str) -> str:
    """Return the path of a program; without it the calling test is skipped, or fails in CI.

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
    """Count the tests that were skipped for want of a program, by what the skip said."""
    return Counter(
        _MISSING + reason.partition(_MISSING)[2] for reason in reasons if _MISSING in reason
    )


def report_missing(terminal: Any) -> None:
    """Say at the end of a run which tests did not run for want of a program."""
    # A skip's report holds the file, the line and the reason.
    skipped = [report.longrepr for report in terminal.stats.get("skipped", ())]
    missing = count_missing(place[2] for place in skipped if isinstance(place, tuple))
    if missing:
        terminal.section("tests that did not run", sep="=", yellow=True, bold=True)
        for reason, number in missing.items():
            terminal.line(f"{number} skipped, {reason}", yellow=True)


def is_ci() -> bool:
    """Say whether this is CI, where what cannot run is a failure."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def _give_up(reason: str) -> NoReturn:
    if not is_ci():
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)
