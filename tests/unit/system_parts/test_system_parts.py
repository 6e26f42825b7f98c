"""A missing program is a loud skip for a developer and a failure in CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system_parts import PACKAGES, count_missing, require_part

_MAKEFILE = Path(__file__).parents[3] / "Makefile"


@pytest.fixture
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_program_is_found_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "promtool"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert require_part("promtool") == str(program)


@pytest.mark.usefixtures("_nothing_installed")
def test_a_developer_without_the_program_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match=r"promtool .*package prometheus"):
        require_part("promtool")


@pytest.mark.usefixtures("_nothing_installed")
def test_ci_without_the_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match=r"promtool .*package prometheus"):
        require_part("promtool")


@pytest.mark.usefixtures("_nothing_installed")
def test_only_skips_for_missing_programs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception) as skipped:
        require_part("chromium")
    reason = f"Skipped: {skipped.value}"

    counted = count_missing([reason, reason, "Skipped: needs a CUDA device"])

    assert list(counted.values()) == [2]
    assert "chromium" in next(iter(counted))


def test_make_system_deps_installs_every_package() -> None:
    (line,) = (
        line
        for line in _MAKEFILE.read_text(encoding="utf-8").splitlines()
        if line.startswith("SYSTEM_PACKAGES :=")
    )

    assert set(line.partition(":=")[2].split()) == set(PACKAGES.values())
