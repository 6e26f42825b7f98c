"""The documents wrap at 100 columns, and the paths and links in them exist."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.markdown import anchors, code_spans, links, prose

_ROOT = Path(__file__).parents[2]
_WIDTH = 100
_NOT_WRAPPED = (
    # Written by `make bench`.
    r"docs/measurements/\d{4}-.*",
    # Still to wrap.
    r"docs/operations\.md",
    r"charts/kvreg/README\.md",
)
# Records of their time: the paths in them may be gone.
_RECORDS = r"CHANGELOG\.md|docs/(adr|measurements)/.*"

_FOLDERS = ("service", "kernels", "operator", "charts", "tests", "docs", "dashboards")
_ENDINGS = (".py", ".md", ".yaml", ".json", ".tpl")
# Folders to which a document may refer by relative paths. The last one has the client packages.
_BASES = (
    "",
    "service",
    "service/kvreg_service",
    "kernels/kvreg_kernels",
    "operator/kvreg_operator",
    "charts/kvreg/examples",
    sysconfig.get_path("purelib"),
)


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [one for one in folders if not one.startswith((".", "__")) and one != "build"]
        yield from (Path(folder, name) for name in names)


def _documents(root: Path, but: str = r"(?!)") -> list[str]:
    found = (path.relative_to(root).as_posix() for path in _files(root) if path.suffix == ".md")
    return sorted(name for name in found if not re.fullmatch(but, name))


def _long_lines(text: str) -> list[int]:
    return [number for number, line in prose(text) if len(line) > _WIDTH]


def _paths(text: str) -> Iterator[str]:
    """Yield what looks like a path of this repository, or the name of a module, in code spans."""
    for span in code_spans(text):
        for word in re.split(r"[\s\"'=,()]+", span):
            if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)*/?", word):
                continue
            if "/" not in word:
                is_path = word.endswith((".py", ".tpl"))
            else:
                is_path = word.endswith(_ENDINGS) or word.partition("/")[0] in _FOLDERS
            if is_path:
                yield word


def _missing_paths(text: str, root: Path) -> list[str]:
    names = {path.name for path in _files(root)}
    return [
        path
        for path in _paths(text)
        if not any((root / base / path).exists() for base in _BASES)
        and ("/" in path or path not in names)
    ]


def _broken_links(document: str, root: Path) -> list[str]:
    path = root / document
    broken: list[str] = []
    for link in links(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        exists = target.exists() and (not anchor or anchor in anchors(target.read_text("utf-8")))
        if not exists:
            broken.append(link)
    return broken


@pytest.mark.parametrize("document", _documents(_ROOT, "|".join(_NOT_WRAPPED)))
def test_prose_is_wrapped(document: str) -> None:
    assert _long_lines((_ROOT / document).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("document", _documents(_ROOT, _RECORDS))
def test_paths_exist(document: str) -> None:
    assert _missing_paths((_ROOT / document).read_text(encoding="utf-8"), _ROOT) == []


@pytest.mark.parametrize("document", _documents(_ROOT))
def test_links_lead_somewhere(document: str) -> None:
    assert _broken_links(document, _ROOT) == []


# That the checks find what is wrong.

_LONG = "word " * 21


def test_only_prose_has_to_be_wrapped() -> None:
    text = f"""\
# {_LONG}
{_LONG}
| {_LONG} |

```sh
{_LONG}
```
<!-- {_LONG}
{_LONG} -->
- {_LONG}
- [{_LONG}](README.md)
"""
    assert _long_lines(text) == [2, 10]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one module and two documents."""
    (tmp_path / "service" / "kvreg_service" / "core").mkdir(parents=True)
    (tmp_path / "service" / "kvreg_service" / "core" / "budget.py").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.md").write_text('# A `title`\n\n## A title\n\n<a id="here"></a>\n')
    return tmp_path


@pytest.mark.parametrize(
    "code",
    [
        "core/budget.py",
        "budget.py",
        "service/kvreg_service/core/",
        "pytest docs/other.md -q",
        "GET /v1/models",
        "application/json",
        "requests.py.1",
    ],
)
def test_code_without_a_missing_path_passes(tree: Path, code: str) -> None:
    assert _missing_paths(f"See `{code}`.", tree) == []


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("core/gone.py", "core/gone.py"),
        ("gone.py", "gone.py"),
        ("service/gone/", "service/gone/"),
        ("pytest tests/gone.py -q", "tests/gone.py"),
        ("api/gone.json", "api/gone.json"),
    ],
)
def test_missing_path_is_found(tree: Path, code: str, path: str) -> None:
    assert _missing_paths(f"See `{code}`.", tree) == [path]


@pytest.mark.parametrize(
    "link", ["other.md", "other.md#a-title", "other.md#a-title-1", "other.md#here", "..", "#top"]
)
def test_link_that_leads_somewhere_passes(tree: Path, link: str) -> None:
    (tree / "docs" / "document.md").write_text(
        f"# Top\n\n[text `](code)`]({link}) [web](https://x)"
    )
    assert _broken_links("docs/document.md", tree) == []


@pytest.mark.parametrize("link", ["gone.md", "other.md#gone", "#gone", "../docs/gone/"])
def test_broken_link_is_found(tree: Path, link: str) -> None:
    (tree / "docs" / "document.md").write_text(f"# Top\n\nA [text]({link}).\n\n```\n[a](b)\n```\n")
    assert _broken_links("docs/document.md", tree) == [link]
