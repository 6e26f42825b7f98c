"""Reads a request log as documented, and finds which prompts start with which prefixes.

It depends on the format of the file only, not on the service.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = 64
Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class PrefixReader:
    """Knows the prefixes of the ledger of every request line."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.requests = [line for line in lines if line["kind"] == "request"]
        self._parents: dict[str, str | None] = {}
        self._marks_inside: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        self._late: defaultdict[tuple[str, int], set[tuple[int, str]]] = defaultdict(set)
        for line in self.requests:
            self._take_in(line)

    def _take_in(self, line: Line) -> None:
        before = line["known_page"]
        for page in _explicit_pages(line):
            self._parents[page] = before
            before = page
        pages = self.pages(line)
        marks = dict(line["marks"])
        for position, name in marks.items():
            if position // PAGE < len(pages):
                page = pages[position // PAGE]
                if page is not None:
                    self._marks_inside[page].add((position, name))
        for number, position in line["late_marks"]:
            self._late[line["engine"], number].add((position, marks[position]))

    def pages(self, line: Line) -> list[str | None]:
        """The hashes of the whole pages of a ledger; None where the lines with them are lost."""
        known: list[str | None] = []
        page = line["known_page"]
        while page is not None and len(known) < line["num_known_pages"]:
            known.append(page)
            page = self._parents.get(page)
        lost = line["num_known_pages"] - len(known)
        return [None] * lost + known[::-1] + _explicit_pages(line)

    def name(self, line: Line, position: int) -> tuple[int, str] | None:
        """The hash of the prefix that ends at a position of the line's own ledger."""
        if position % PAGE == 0:
            page = self.pages(line)[position // PAGE - 1]
            return (position, page) if page is not None else None
        return position, dict(map(tuple, line["marks"]))[position]

    def marks(self, line: Line) -> set[tuple[int, str]]:
        """The marks of a ledger, from any line."""
        found = {(position, name) for position, name in line["marks"]}
        found |= self._late[line["engine"], line["number"]]
        return found.union(*(self._marks_inside.get(page or "", ()) for page in self.pages(line)))

    def begins_with(self, line: Line, prefix: tuple[int, str]) -> bool:
        """Whether a ledger starts with a prefix, given its hash."""
        position, name = prefix
        if position % PAGE:
            return prefix in self.marks(line)
        pages, num_pages = self.pages(line), position // PAGE
        return len(pages) >= num_pages and pages[num_pages - 1] == name

    def longest_reuse(self, line: Line, others: Iterable[Line]) -> int:
        """The longest prefix of a prompt at which another request could keep a state."""
        longest = 0
        for other in others:
            if other["tenant"] != line["tenant"]:
                continue
            single = ("turn_boundary", "round_boundary", "message_boundary", "frontier")
            positions = {*(other[name] for name in single), *other["heads"], *other["kept_at"]}
            for position in positions - {None}:
                prefix = self.name(other, position)
                if longest < position < line["prompt_tokens"] and prefix is not None:
                    longest = position if self.begins_with(line, prefix) else longest
        return longest


def _explicit_pages(line: Line) -> list[str]:
    names = b64decode(line["pages"]).hex()
    return [names[i : i + 16] for i in range(0, len(names), 16)]
