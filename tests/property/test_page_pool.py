"""The page pool against reference counts of page tables, and page contents that must persist."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from kvreg_service.core.errors import OutOfPages
from kvreg_service.core.ids import PageId
from kvreg_service.core.memory.pages import PagePool, PageState


@dataclass
class Table:
    """A page table, and the values that its owner wrote into its pages."""

    pages: list[PageId] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    is_kept: bool = False


class PagePoolMachine(RuleBasedStateMachine):
    """Owners allocate, write, keep, resume, branch and release in any order."""

    tables = Bundle("tables")

    @initialize(num_pages=st.integers(1, 24))
    def start(self, num_pages):
        self.pool = PagePool(num_pages)
        self.num_pages = num_pages
        self.content: dict[PageId, int] = {}
        self.alive: list[Table] = []
        self.num_writes = 0

    def references(self, page: PageId) -> int:
        return sum(page in table.pages for table in self.alive)

    def free_pages(self) -> set[int]:
        return {page for page in range(self.num_pages) if self.references(PageId(page)) == 0}

    @rule(target=tables)
    def new_owner(self):
        table = Table()
        self.alive.append(table)
        return table

    @rule(
        table=tables,
        count=st.integers(0, 6),
        with_hint=st.booleans(),
        room=st.none() | st.integers(0, 12),
    )
    def grow(self, table, count, with_hint, room):
        if table.is_kept:
            return
        free = self.free_pages()
        after = table.pages[-1] if with_hint and table.pages else None
        try:
            taken = self.pool.allocate(count, after=after, room=room)
        except OutOfPages:
            assert count > len(free)
            assert self.pool.num_free == len(free)
            return
        assert len(taken) == len(set(taken)) == count <= len(free)
        assert set(taken) <= free, "a page in use was allocated"
        runs = [
            start for start in range(self.num_pages) if all(start + i in free for i in range(count))
        ]
        if count and after is not None and after + 1 in runs:
            assert taken[0] == after + 1, "the pages after the last one were free but not taken"
        if runs:
            assert taken == list(range(taken[0], taken[0] + count)) if count else not taken
        table.pages += taken
        for page in taken:
            self._write(table, page)

    def _write(self, table: Table, page: PageId) -> None:
        self.num_writes += 1
        self.content[page] = self.num_writes
        table.written.append(self.num_writes)

    @rule(table=tables, count=st.integers(0, 24))
    def fill(self, table, count):
        if not table.is_kept:
            self.pool.seal(table.pages[:count])
            for page in table.pages[:count]:
                assert self.pool.state(page) is PageState.SEALED

    @rule(table=tables)
    def keep(self, table):
        if not table.is_kept:
            self.pool.keep(table.pages)
            table.is_kept = True

    @rule(table=tables)
    def resume(self, table):
        """Continue to write the last page, in a copy if another table shares it."""
        if not table.is_kept:
            return
        self.pool.resume(table.pages)
        table.is_kept = False
        if not table.pages:
            return
        last = table.pages[-1]
        if self.references(last) > 1:
            free = len(self.free_pages())
            try:
                copy = self.pool.unshare(last)
            except OutOfPages:
                assert free == self.pool.num_free == 0
                return
            assert copy.src == last
            self.content[copy.dst] = self.content[copy.src]
            table.pages[-1] = copy.dst
        self.pool.unseal(table.pages[-1:])
        assert self.pool.state(table.pages[-1]) is PageState.ACTIVE
        table.written.pop()
        self._write(table, table.pages[-1])

    @rule(target=tables, table=tables, writable_from=st.integers(0, 8))
    def branch(self, table, writable_from):
        """A kept table is forked, and its owner overwrites everything from a page on."""
        if not table.is_kept:
            return multiple()
        copy = Table(is_kept=True)
        free = len(self.free_pages())
        try:
            copy.pages, moves = self.pool.fork(table.pages, writable_from)
        except OutOfPages:
            assert len(table.pages[writable_from:]) > free
            assert self.pool.num_free == free
            return multiple()
        copy.written = list(table.written)
        self.alive.append(copy)
        assert copy.pages[:writable_from] == table.pages[:writable_from]
        assert not set(copy.pages[writable_from:]) & set(table.pages)
        for move in moves:
            self.content[move.dst] = self.content[move.src]
        for index, page in enumerate(table.pages):
            if index >= writable_from and self.references(page) == 1:
                self.num_writes += 1
                table.written[index] = self.content[page] = self.num_writes
        return copy

    @rule(table=consumes(tables))
    def release(self, table):
        before = self.pool.num_free
        owned = sum(self.references(page) == 1 for page in table.pages)
        freed = self.pool.release(table.pages, is_kept=table.is_kept)
        self.alive = [one for one in self.alive if one is not table]
        assert freed == owned == self.pool.num_free - before

    @rule()
    def recount(self):
        before = self.pool.count()
        self.pool.recount(*self._tables())
        assert self.pool.count() == before

    def _tables(self) -> tuple[list[list[PageId]], list[list[PageId]]]:
        return (
            [table.pages for table in self.alive if not table.is_kept],
            [table.pages for table in self.alive if table.is_kept],
        )

    @invariant()
    def counts_match_the_tables(self):
        self.pool.check_invariants(*self._tables())
        assert self.pool.num_free == len(self.free_pages())
        counts = self.pool.count()
        assert sum(counts.values()) == self.num_pages
        assert counts[PageState.FREE] == self.pool.num_free
        running, kept = self._tables()
        held_running = {page for table in running for page in table}
        only_kept = {page for table in kept for page in table} - held_running
        assert counts[PageState.CACHED] == len(only_kept)

    @invariant()
    def pages_hold_what_their_table_wrote(self):
        for table in self.alive:
            assert [self.content[page] for page in table.pages] == table.written

    def teardown(self):
        for table in getattr(self, "alive", []):
            self.pool.release(table.pages, is_kept=table.is_kept)
        if hasattr(self, "pool"):
            self.pool.check_invariants([], [])
            assert self.pool.num_free == self.num_pages


def test_pages_are_never_leaked_nor_double_allocated_nor_overwritten():
    run_state_machine_as_test(PagePoolMachine, settings=settings(stateful_step_count=50))
