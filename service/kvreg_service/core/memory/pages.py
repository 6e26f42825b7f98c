"""KV pages: which are free, and what holds the others.

Page tables are paths: a table that holds a page holds all pages before it as well, whether a
running request or a kept state has it. So it is enough to count, for each page, the tables that end
in it and the pages that follow it. Holding a table then takes constant time, and releasing one
takes a step for each page that becomes free. The bytes of a page belong to the runner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvreg_service.core.errors import InvariantBroken, OutOfPages
from kvreg_service.core.ids import PageId


@dataclass(frozen=True)
class PageCopy:
    """The content of ``src`` must be copied to ``dst`` before either is written."""

    src: PageId
    dst: PageId


class PagePool:
    """``num_pages`` pages.

    Pages are allocated in ascending runs where possible, because a sequence on consecutive pages is
    read without gathering.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # One byte a page, so that a run of free pages is one search in C.
        self._is_free = bytearray(b"\x01" * num_pages)
        self._num_holders = [0] * num_pages
        self._previous: list[PageId | None] = [None] * num_pages
        self._num_free = num_pages

    @property
    def num_free(self) -> int:
        """Pages that no table holds."""
        return self._num_free

    def allocate(
        self, count: int, *, after: PageId | None = None, room: int | None = None
    ) -> list[PageId]:
        """Extend a table that ends in ``after``, or begin one, by ``count`` free pages.

        Args:
            count: pages to take.
            after: the table's last page; the pages that follow it are preferred.
            room: pages the table may need in all; a free run of that length is preferred.

        Raises:
            OutOfPages: fewer are free. Nothing is taken then.
        """
        if count > self._num_free:
            raise OutOfPages(
                f"{count} pages are needed and {self._num_free} of {self.num_pages} are free",
                needed=count,
                free=self._num_free,
            )
        if count == 0:
            return []
        start = self._find_run(count, after, room)
        if start is not None:
            taken = [PageId(page) for page in range(start, start + count)]
        else:
            taken = self._scattered(count)
        # The table no longer ends in ``after``, but its next page follows it: the count stays.
        previous = after
        for page in taken:
            self._is_free[page] = 0
            self._num_holders[page] = 1
            self._previous[page] = previous
            previous = page
        self._num_free -= count
        return taken

    def hold(self, table: Sequence[PageId]) -> None:
        """Add a table, which is a prefix of one that is held. Constant time."""
        if table:
            self._num_holders[table[-1]] += 1

    def release(self, table: Sequence[PageId]) -> int:
        """Remove a table; return how many pages became free."""
        num_freed = 0
        page = table[-1] if table else None
        while page is not None:
            self._num_holders[page] -= 1
            if self._num_holders[page]:
                break
            self._is_free[page] = 1
            num_freed += 1
            page = self._previous[page]
        self._num_free += num_freed
        return num_freed

    def is_shared(self, table: Sequence[PageId]) -> bool:
        """Return whether another table holds the last page of this one."""
        return self._num_holders[table[-1]] > 1

    def count_own(self, *tables: Sequence[PageId]) -> int:
        """Return how many pages would become free if all of these tables were released."""
        num_own = 0
        released: dict[PageId, int] = {}
        for table in tables:
            page = table[-1] if table else None
            while page is not None:
                released[page] = released.get(page, 0) + 1
                if released[page] < self._num_holders[page]:
                    break
                num_own += 1
                page = self._previous[page]
        return num_own

    def recount(self, tables: Iterable[Sequence[PageId]]) -> None:
        """Rebuild all counts from the tables that are held."""
        self._num_holders, self._previous = self._count(tables)
        self._is_free = bytearray(count == 0 for count in self._num_holders)
        self._num_free = sum(self._is_free)

    def check_invariants(self, tables: Iterable[Sequence[PageId]]) -> None:
        """Compare the counts with all tables.

        Raises:
            InvariantBroken: a count differs, two tables disagree on the page before another, or
                free and held pages do not add up.
        """
        num_holders, previous = self._count(tables)
        if num_holders != self._num_holders:
            wrong = [p for p in range(self.num_pages) if num_holders[p] != self._num_holders[p]]
            raise InvariantBroken(
                f"holders of pages {wrong[:8]} are counted as "
                f"{[self._num_holders[p] for p in wrong[:8]]}, and there are "
                f"{[num_holders[p] for p in wrong[:8]]}"
            )
        for page in range(self.num_pages):
            if bool(self._is_free[page]) != (num_holders[page] == 0):
                raise InvariantBroken(f"page {page} is free and held, or neither")
            if num_holders[page] and previous[page] != self._previous[page]:
                raise InvariantBroken(
                    f"page {page} follows {previous[page]}, and is noted to follow "
                    f"{self._previous[page]}"
                )
        if self._num_free != sum(self._is_free):
            raise InvariantBroken(
                f"{self._num_free} pages are counted free, and {sum(self._is_free)} are"
            )

    def _count(self, tables: Iterable[Sequence[PageId]]) -> tuple[list[int], list[PageId | None]]:
        """Return the holders of each page, and the page before it, as the tables have them."""
        num_holders = [0] * self.num_pages
        previous: list[PageId | None] = [None] * self.num_pages
        is_seen = [False] * self.num_pages
        for table in tables:
            if len(set(table)) != len(table):
                raise InvariantBroken(f"a table holds a page twice: {table}")
            for index, page in enumerate(table):
                before = table[index - 1] if index else None
                if not is_seen[page]:
                    is_seen[page], previous[page] = True, before
                    if before is not None:
                        num_holders[before] += 1
                elif previous[page] != before:
                    raise InvariantBroken(f"page {page} follows {before} and {previous[page]}")
            if table:
                num_holders[table[-1]] += 1
        return num_holders, previous

    def _find_run(self, count: int, after: PageId | None, room: int | None) -> int | None:
        wanted = b"\x01" * count
        if after is not None and self._is_free.startswith(wanted, after + 1):
            return after + 1
        for length in (room or count, count):
            start = self._is_free.find(b"\x01" * max(length, count))
            if start >= 0:
                return start
        return None

    def _scattered(self, count: int) -> list[PageId]:
        taken: list[PageId] = []
        start = 0
        for _ in range(count):
            page = PageId(self._is_free.find(1, start))
            taken.append(page)
            start = page + 1
        return taken
