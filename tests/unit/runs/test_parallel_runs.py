"""What holds for a run of the tests in one process holds with several workers as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(reason="starts pytest with two workers, which import all plugins")

_ROOT = Path(__file__).parents[3]
_TESTS = {
    "test_warning.py": """
import warnings

def test_warns():
    warnings.warn("deprecated")
""",
    "test_part.py": """
from tests.system_parts import require_part

def test_needs_a_part():
    require_part("promtool")
""",
    "test_slow.py": """
import pytest

@pytest.mark.slow
def test_takes_long():
    pass

@pytest.mark.slow(reason="starts a server")
def test_starts_a_server():
    pass
""",
}


def run(folder: Path, **environment: str) -> str:
    """Run the tests above with two workers and the configuration of this repository."""
    for name, text in _TESTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    options = ("-n", "2", "--dist", "loadfile", "-rA", "-p", "tests.conftest")
    config = ("-c", str(_ROOT / "pyproject.toml"), "-o", f"cache_dir={folder / 'cache'}")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *config, str(folder)],
        cwd=_ROOT,
        env={**inherited, "PATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout + ran.stderr


def test_checks_fail_tests_and_missing_parts_are_reported(tmp_path: Path) -> None:
    report = run(tmp_path, CI="")
    assert "UserWarning: deprecated" in report
    assert "write the reason" in report
    assert "1 skipped, missing system part: promtool" in report
    assert "1 failed, 1 passed, 1 skipped, 1 error" in report


def test_missing_part_fails_in_ci(tmp_path: Path) -> None:
    report = run(tmp_path, CI="true")
    assert "missing system part: promtool" in report
    assert "2 failed, 1 passed, 1 error" in report
