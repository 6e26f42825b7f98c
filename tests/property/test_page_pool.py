"""The page pool against a plain list of page tables, and page contents that must persist."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
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

from kvreg_service.core.errors import InvariantBroken, OutOfPages
from kvreg_service.core.ids import PageId
from kvreg_service.core.memory.pages import PagePool


@dataclass(eq=False)
class Table:
    """A page table, and the values that its owner found or wrote in its pages."""

    pages: list[PageId] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    is_kept: bool = False


class PagePoolMachine(RuleBasedStateMachine):
    """Requests grow tables, keep prefixes of them, resume those and release all in any order."""

    tables = Bundle("tables")

    @initialize(num_pages=st.integers(1, 24))
    def start(self, num_pages):
        self.pool = PagePool(num_pages)
        self.num_pages = num_pages
        self.content: dict[PageId, int] = {}
        self.alive: list[Table] = []
        self.num_writes = 0

    def holders(self, page: PageId) -> list[Table]:
        return [table for table in self.alive if page in table.pages]

    def free_pages(self) -> set[int]:
        return set(range(self.num_pages)) - {page for table in self.alive for page in table.pages}

    def own_pages(self, *tables: Table) -> set[PageId]:
        """Return the pages that no other table holds."""
        pages = {page for table in tables for page in table.pages}
        return {page for page in pages if set(self.holders(page)) <= set(tables)}

    @rule(target=tables, count=st.integers(0, 6), room=st.none() | st.integers(0, 12))
    def new_request(self, count, room):
        table = self._added(Table())
        self._grow(table, count, room)
        return table

    def _added(self, table: Table) -> Table:
        self.alive.append(table)
        return table

    @rule(table=tables, count=st.integers(0, 6), room=st.none() | st.integers(0, 12))
    def grow(self, table, count, room):
        if not table.is_kept:
            self._grow(table, count, room)

    def _grow(self, table: Table, count: int, room: int | None) -> None:
        """Allocate pages for a table and write them, if there are enough."""
        free = self.free_pages()
        after = table.pages[-1] if table.pages else None
        try:
            taken = self.pool.allocate(count, after=after, room=room)
        except OutOfPages:
            assert count > len(free)
            return
        assert len(taken) == len(set(taken)) == count
        assert set(taken) <= free, "a page in use was allocated"
        if count:
            self._check_run(free, taken, after, room)
        table.pages += taken
        for page in taken:
            self.num_writes += 1
            self.content[page] = self.num_writes
            table.written.append(self.num_writes)

    def _check_run(
        self, free: set[int], taken: list[PageId], after: PageId | None, room: int | None
    ) -> None:
        """Check that the next pages are taken, else a run with room, else a run, else any."""

        def starts(length: int) -> list[int]:
            return [
                start
                for start in range(self.num_pages)
                if all(start + index in free for index in range(length))
            ]

        runs = starts(len(taken))
        if runs:
            assert taken == list(range(taken[0], taken[0] + len(taken)))
        if after is not None and after + 1 in runs:
            assert taken[0] == after + 1, "the pages after the last one were free but not taken"
        elif starts(max(len(taken), room or 0)):
            assert taken[0] in starts(max(len(taken), room or 0))

    @rule(target=tables, table=tables, num_kept=st.integers(0, 24))
    def keep_a_prefix(self, table, num_kept):
        """A state is kept that holds the first pages of a request, or of another state."""
        pages = table.pages[:num_kept]
        self.pool.hold(pages)
        return self._added(Table(pages, table.written[: len(pages)], is_kept=True))

    @rule(target=tables, table=tables, is_partial=st.booleans())
    def resume(self, table, is_partial):
        """A request goes on from a state, and writes the last page in a copy if it is partial."""
        if not table.is_kept or not table.pages:
            return multiple()
        num_whole = len(table.pages) - is_partial
        whole = table.pages[:num_whole]
        self.pool.hold(whole)
        resumed = self._added(Table(whole, table.written[:num_whole]))
        if is_partial:
            self._grow(resumed, 1, None)
        return resumed

    @rule(table=tables)
    def take_over(self, table):
        """A request goes on in the pages of a state that is freed, unless the last is shared."""
        if not table.is_kept or not table.pages:
            return
        last = table.pages[-1]
        is_shared = self.pool.is_shared(table.pages)
        assert is_shared == (len(self.holders(last)) > 1)
        if not is_shared:
            table.is_kept = False
            self.num_writes += 1
            table.written[-1] = self.content[last] = self.num_writes

    @rule(table=consumes(tables))
    def release(self, table):
        before, owned = self.pool.num_free, self.own_pages(table)
        freed = self.pool.release(table.pages)
        self.alive.remove(table)
        assert freed == len(owned) == self.pool.num_free - before

    @rule(first=tables, others=st.sets(st.integers(0, 9)))
    def count_own(self, first, others):
        tables = [first, *(one for one in self.alive[:10] if self.alive.index(one) in others)]
        tables = list(dict.fromkeys(tables))
        count = self.pool.count_own(*(table.pages for table in tables))
        assert count == len(self.own_pages(*tables))

    @rule(table=consumes(tables))
    def lose_a_table_and_recount(self, table):
        self.alive.remove(table)
        if table.pages:
            with pytest.raises(InvariantBroken):
                self.pool.check_invariants(self._pages())
        self.pool.recount(self._pages())

    def _pages(self) -> list[list[PageId]]:
        return [table.pages for table in self.alive]

    @invariant()
    def counts_match_the_tables(self):
        self.pool.check_invariants(self._pages())
        assert self.pool.num_free == len(self.free_pages())

    @invariant()
    def pages_hold_what_their_table_wrote(self):
        for table in self.alive:
            assert [self.content[page] for page in table.pages] == table.written

    def teardown(self):
        for table in getattr(self, "alive", []):
            self.pool.release(table.pages)
        if hasattr(self, "pool"):
            self.pool.check_invariants([])
            assert self.pool.num_free == self.num_pages


def test_pages_are_never_leaked_nor_double_allocated_nor_overwritten():
    run_state_machine_as_test(PagePoolMachine, settings=settings(stateful_step_count=50))
