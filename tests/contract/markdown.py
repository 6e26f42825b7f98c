"""Finds the parts of Markdown that the document tests check: prose, code spans, links, anchors.

Supports the Markdown that the documents of this repository use, not the whole language.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^\s*(```+|~~~+)")
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)|^\s*\[[^\]]+\]:\s+(\S+)$", re.MULTILINE)
_ONLY_A_LINK = re.compile(r"^\s*([-*]\s+)?!?\[[^\]]*\](\([^)]*\)|:\s+\S+)[.,:;]?$")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line outside fenced code and comments."""
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    end: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if end is not None:
            end = None if line.strip() == end else end
        elif fence:
            end = fence[1]
        else:
            yield number, line


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line that can be wrapped.

    Leaves out headings, tables, and lines that are one link.
    """
    for number, line in _lines(text):
        if not line.startswith(("|", "#")) and not _ONLY_A_LINK.match(line):
            yield number, line


def _body(text: str) -> str:
    return "\n".join(line for _, line in _lines(text))


def code_spans(text: str) -> list[str]:
    return [code for _, code in _CODE.findall(_body(text))]


def links(text: str) -> list[str]:
    """Return the targets of all links, images and link definitions."""
    return [inline or defined for inline, defined in _LINK.findall(_CODE.sub("", _body(text)))]


def anchors(text: str) -> set[str]:
    """Return the anchors of a text: those that GitHub derives from headings, and explicit ids."""
    body = _body(text)
    found = set(re.findall(r'<a id="([^"]+)">', body))
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.+)$", body, re.MULTILINE):
        name = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found
