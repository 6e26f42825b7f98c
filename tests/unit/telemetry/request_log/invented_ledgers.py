"""Synthetic ledgers with the same common prefixes as the logged ones, to replay a log.

A hash stands for all tokens since the hash before it. Uses the lines of the log only.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import cache

from tests.unit.telemetry.request_log.log_reading import PAGE, Line, PrefixReader

Prefix = tuple[int, str]


class InventedLedgers:
    """Synthetic tokens for every request line of a log; equal prefixes have equal tokens."""

    def __init__(self, reader: PrefixReader) -> None:
        self._reader = reader
        self._before: defaultdict[Prefix, set[Prefix]] = defaultdict(set)
        for line in reader.requests:
            for prefixes in self._by_page(line):
                for prefix in prefixes:
                    self._before[prefix] |= {one for one in prefixes if one[0] < prefix[0]}
        self._all_before = cache(self._closure)

    def tokens(self, line: Line) -> list[int]:
        """The tokens of prompt and answer that were computed."""
        invented: list[int] = []
        for prefixes in self._by_page(line):
            within = set(prefixes).union(*(self._all_before(one) for one in prefixes))
            for position, name in sorted(within):
                count = position - len(invented)
                invented += [_token(name, position, index) for index in range(count)]
        return invented

    def _by_page(self, line: Line) -> list[list[Prefix]]:
        """The prefixes of a ledger, grouped by the page in which they end."""
        pages = self._reader.pages(line)
        inside: list[list[Prefix]] = [[] for _ in range(len(pages) + 1)]
        for position, name in self._reader.marks(line):
            inside[position // PAGE].append((position, name))
        for index, page in enumerate(pages):
            unknown = f"{line['engine']}/{line['number']}"
            inside[index].append(((index + 1) * PAGE, page or unknown))
        return inside

    def _closure(self, prefix: Prefix) -> frozenset[Prefix]:
        found = self._before[prefix]
        return frozenset(found).union(*(self._all_before(one) for one in found))


def _token(name: str, position: int, index: int) -> int:
    digest = hashlib.blake2b(f"{name}/{position}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1
