"""Owns the KV pages: which are free, and how many sequences reference the others.

A page is referenced by *running* sequences (on a busy lane) and by *kept* ones (on an idle lane, in
an entry, as an anchor). Forks and anchors share pages, and a shared page is never written: a fork
gets copies of the pages that the writer is about to overwrite (`fork`), and a sequence that
continues inside of a shared page gets a page of its own (`unshare`). The bytes of a page belong to
the runner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from kvreg_service.core.errors import InvariantBroken, OutOfPages
from kvreg_service.core.ids import PageId


class PageState(Enum):
    """The life of a page: free -> active -> sealed -> cached -> free (or active again)."""

    FREE = "free"
    ACTIVE = "active"
    """Referenced by a running sequence and not full yet."""
    SEALED = "sealed"
    """Full and referenced by a running sequence; it may be shared."""
    CACHED = "cached"
    """Referenced by kept sequences only: reusable, and evictable under pressure."""


@dataclass(frozen=True)
class PageCopy:
    """The content of ``src`` must be copied to ``dst`` before either is written."""

    src: PageId
    dst: PageId


class PagePool:
    """``num_pages`` pages and their reference counts.

    Pages are allocated in ascending runs where possible, because a sequence on consecutive pages is
    read without gathering.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # One byte a page, so that a run of free pages is one search in C.
        self._is_free = bytearray(b"\x01" * num_pages)
        self._is_sealed = bytearray(num_pages)
        self._running_refs = [0] * num_pages
        self._kept_refs = [0] * num_pages
        self._num_free = num_pages

    @property
    def num_free(self) -> int:
        """Pages without a reference."""
        return self._num_free

    def state(self, page: PageId) -> PageState:
        """Return the page's state in its life cycle."""
        if self._is_free[page]:
            return PageState.FREE
        if self._running_refs[page] == 0:
            return PageState.CACHED
        return PageState.SEALED if self._is_sealed[page] else PageState.ACTIVE

    def count(self) -> dict[PageState, int]:
        """Return how many pages are in each state. Time: linear in the pool."""
        counts = dict.fromkeys(PageState, 0)
        for page in range(self.num_pages):
            counts[self.state(PageId(page))] += 1
        return counts

    def references(self, page: PageId) -> int:
        """Return how many sequences hold the page."""
        return self._running_refs[page] + self._kept_refs[page]

    def allocate(
        self, count: int, *, after: PageId | None = None, room: int | None = None
    ) -> list[PageId]:
        """Take ``count`` free pages for a running sequence.

        Args:
            count: pages to take.
            after: the sequence's last page; the pages that follow it are preferred.
            room: pages the sequence may need in all; a free run of that length is preferred.

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
        for page in taken:
            self._is_free[page] = 0
            self._running_refs[page] = 1
        self._num_free -= count
        return taken

    def seal(self, pages: Iterable[PageId]) -> None:
        """Mark pages as full."""
        for page in pages:
            self._is_sealed[page] = 1

    def unseal(self, pages: Iterable[PageId]) -> None:
        """Mark pages as writable again: their sequence went back to a position inside them."""
        for page in pages:
            self._is_sealed[page] = 0

    def keep(self, pages: Iterable[PageId]) -> None:
        """Turn one running reference of each page into a kept one: its sequence came to rest."""
        for page in pages:
            self._running_refs[page] -= 1
            self._kept_refs[page] += 1

    def resume(self, pages: Iterable[PageId]) -> None:
        """Turn one kept reference of each page into a running one: its sequence runs again."""
        for page in pages:
            self._kept_refs[page] -= 1
            self._running_refs[page] += 1

    def release(self, pages: Iterable[PageId], *, is_kept: bool) -> int:
        """Release one reference of each page; return how many became free."""
        refs = self._kept_refs if is_kept else self._running_refs
        freed = 0
        for page in pages:
            refs[page] -= 1
            if self._running_refs[page] == 0 and self._kept_refs[page] == 0:
                self._is_free[page] = 1
                self._is_sealed[page] = 0
                freed += 1
        self._num_free += freed
        return freed

    def share(self, pages: Sequence[PageId], *, is_kept: bool) -> None:
        """Add one reference to each page, for a sequence that only reads it."""
        refs = self._kept_refs if is_kept else self._running_refs
        for page in pages:
            refs[page] += 1

    def frees_any(self, pages: Sequence[PageId]) -> bool:
        """Return whether releasing one reference of each page would free one."""
        # A sequence shares its first pages.
        return any(self.references(page) == 1 for page in reversed(pages))

    def fork(
        self, table: Sequence[PageId], writable_from: int
    ) -> tuple[list[PageId], list[PageCopy]]:
        """Build a kept copy of the page table of a sequence that goes on writing.

        Pages before index ``writable_from`` are shared. The later ones, which the writer may
        overwrite, are copied; the writer keeps the originals, so its run stays consecutive.

        Returns:
            The kept copy's page table, and the copies that the runner must make first.

        Raises:
            OutOfPages: there are not enough free pages for the copies. Nothing changed then.
        """
        originals = table[writable_from:]
        copies = self.allocate(len(originals))
        for original, page in zip(originals, copies, strict=True):
            self._running_refs[page] = 0
            self._kept_refs[page] = 1
            self._is_sealed[page] = self._is_sealed[original]
        shared = list(table[:writable_from])
        for page in shared:
            self._kept_refs[page] += 1
        return shared + copies, [
            PageCopy(src, dst) for src, dst in zip(originals, copies, strict=True)
        ]

    def unshare(self, page: PageId, *, after: PageId | None = None) -> PageCopy:
        """Give a running sequence a page of its own instead of a shared one.

        Returns:
            The copy that the runner must make before the sequence writes; its ``dst`` is the page.

        Raises:
            OutOfPages: no page is free. Nothing changed then.
        """
        (own,) = self.allocate(1, after=after)
        self.release([page], is_kept=False)
        return PageCopy(page, own)

    def recount(
        self,
        running_tables: Iterable[Sequence[PageId]],
        kept_tables: Iterable[Sequence[PageId]],
    ) -> None:
        """Recount every reference from the page tables of all sequences."""
        self._running_refs = self._references_in(running_tables)
        self._kept_refs = self._references_in(kept_tables)
        for page in range(self.num_pages):
            is_free = self.references(PageId(page)) == 0
            self._is_free[page] = is_free
            self._is_sealed[page] = self._is_sealed[page] and not is_free
        self._num_free = sum(self._is_free)

    def check_invariants(
        self,
        running_tables: Iterable[Sequence[PageId]],
        kept_tables: Iterable[Sequence[PageId]],
    ) -> None:
        """Compare the counts with the page tables of all sequences.

        Raises:
            InvariantBroken: a count differs, or free and referenced pages do not add up.
        """
        for name, refs, tables in (
            ("running", self._running_refs, running_tables),
            ("kept", self._kept_refs, kept_tables),
        ):
            expected = self._references_in(tables)
            if expected != refs:
                wrong = [p for p in range(self.num_pages) if expected[p] != refs[p]]
                raise InvariantBroken(
                    f"{name} references of pages {wrong[:8]} are "
                    f"{[refs[p] for p in wrong[:8]]}, and sequences hold "
                    f"{[expected[p] for p in wrong[:8]]}"
                )
        for index in range(self.num_pages):
            if bool(self._is_free[index]) != (self.references(PageId(index)) == 0):
                raise InvariantBroken(f"page {index} is free and referenced, or neither")
        if self._num_free != sum(self._is_free):
            raise InvariantBroken(
                f"{self._num_free} pages are counted free, and {sum(self._is_free)} are"
            )

    def _references_in(self, tables: Iterable[Sequence[PageId]]) -> list[int]:
        references = [0] * self.num_pages
        for table in tables:
            if len(set(table)) != len(table):
                raise InvariantBroken(f"a sequence holds a page twice: {table}")
            for page in table:
                references[page] += 1
        return references

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
