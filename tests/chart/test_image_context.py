"""The build context contains all that the Dockerfiles copy, and nothing that git ignores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.chart.helm import CHART

ROOT = CHART.parents[1]


def ignored() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def copied(dockerfile: Path) -> list[str]:
    """Return what a Dockerfile copies from the context."""
    lines = re.findall(r"^COPY (?!--)(.+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


@pytest.mark.parametrize("name", ["service", "operator"])
def test_whatever_is_copied_is_sent(name: str) -> None:
    sources = copied(ROOT / name / "Dockerfile")
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        parts = {source, *Path(source).parts}
        assert not [line for line in ignored() if line.removeprefix("**/") in parts], source


def test_nothing_that_git_ignores_is_sent() -> None:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    names = {line.removesuffix("/") for line in lines} | {".git"}
    assert names <= {line.removeprefix("**/") for line in ignored()}
