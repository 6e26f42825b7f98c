"""The page pool: allocation, tables as paths, release, exhaustion and repair."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import InvariantBroken, OutOfPages
from kvreg_service.core.ids import pages_for
from kvreg_service.core.memory.pages import PagePool


@pytest.mark.parametrize(
    ("num_tokens", "num_pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)]
)
def test_a_page_holds_64_tokens(num_tokens, num_pages):
    assert pages_for(num_tokens) == num_pages


def _branched():
    """Return a pool with a table of four pages, and another that shares its first two."""
    pool = PagePool(8)
    whole = pool.allocate(4)
    shared = whole[:2]
    pool.hold(shared)
    return pool, whole, shared + pool.allocate(1, after=shared[-1])


# Allocation.


def test_allocated_pages_are_contiguous():
    assert PagePool(8).allocate(5) == [0, 1, 2, 3, 4]


def test_the_pages_after_the_last_one_are_preferred():
    pool = PagePool(8)
    first = pool.allocate(2)
    other = pool.allocate(1)
    pool.release(first)
    assert pool.allocate(2, after=other[-1]) == [3, 4]


def _pool_with_gaps(num_pages, *gaps):
    """Return a pool in which only the pages of the gaps are free."""
    pool = PagePool(num_pages)
    tables = [pool.allocate(1) for _ in range(num_pages)]
    for page in gaps:
        pool.release(tables[page])
    return pool


def test_a_gap_that_fits_the_expected_length_is_preferred_to_a_smaller_one():
    assert _pool_with_gaps(10, 1, 2, 5, 6, 7, 8).allocate(1, room=4) == [5]


def test_scattered_pages_are_used_when_no_contiguous_gap_fits():
    assert _pool_with_gaps(5, 0, 2, 4).allocate(3, after=1, room=5) == [0, 2, 4]


def test_allocating_no_pages_succeeds():
    pool = PagePool(2)
    pool.allocate(2)
    assert pool.allocate(0) == []


def test_running_out_of_pages_takes_none_and_reports_needed_and_free_pages():
    pool = PagePool(3)
    table = pool.allocate(2)
    with pytest.raises(OutOfPages) as caught:
        pool.allocate(5, after=table[-1])
    assert caught.value.fields == {"needed": 5, "free": 1}
    assert pool.num_free == 1
    pool.check_invariants([table])


# Tables as paths.


def test_a_table_holds_every_page_before_its_last_one():
    pool = PagePool(8)
    table = pool.allocate(2)
    table += pool.allocate(2, after=table[-1])
    pool.check_invariants([table])
    assert pool.release(table) == 4
    assert pool.num_free == 8


def test_a_prefix_that_is_held_outlives_the_longer_table():
    pool = PagePool(8)
    table = pool.allocate(4)
    pool.hold(table[:3])
    assert pool.release(table) == 1
    pool.check_invariants([table[:3]])
    assert pool.release(table[:3]) == 3


def test_a_longer_table_outlives_a_prefix_of_it():
    pool = PagePool(8)
    table = pool.allocate(4)
    pool.hold(table[:2])
    assert pool.release(table[:2]) == 0
    pool.check_invariants([table])


def test_two_branches_free_the_pages_that_they_do_not_share():
    pool, whole, branch = _branched()
    assert (pool.release(branch), pool.release(whole)) == (1, 4)


def test_a_table_that_is_held_twice_is_freed_with_its_last_holder():
    pool = PagePool(4)
    table = pool.allocate(2)
    pool.hold(table)
    assert (pool.release(table), pool.release(table)) == (0, 2)


def test_holding_and_releasing_no_pages_does_nothing():
    pool = PagePool(2)
    pool.hold([])
    assert pool.release([]) == 0
    assert pool.num_free == 2


# What is shared, and what is owned.


def test_the_last_page_of_a_table_is_shared_with_its_twin_and_with_a_longer_table():
    pool = PagePool(8)
    table = pool.allocate(2)
    assert not pool.is_shared(table)
    pool.hold(table)
    assert pool.is_shared(table)
    pool.release(table)
    longer = table + pool.allocate(1, after=table[-1])
    pool.hold(table)
    assert pool.is_shared(table)
    assert not pool.is_shared(longer)


def test_the_own_pages_of_a_table_are_those_that_releasing_it_frees():
    pool, whole, branch = _branched()
    assert [pool.count_own(table) for table in (whole, branch)] == [2, 1]
    for table in (branch, whole):
        assert pool.count_own(table) == pool.release(table)


def test_the_own_pages_of_several_tables_are_those_that_releasing_all_of_them_frees():
    pool, whole, branch = _branched()
    pool.hold(whole[:3])
    tables = (whole[:3], branch, whole)
    assert pool.count_own(*tables) == 5
    assert pool.count_own(branch, whole) == 2
    assert sum(pool.release(table) for table in tables) == 5


def test_a_prefix_of_a_longer_table_has_no_own_pages():
    pool = PagePool(8)
    table = pool.allocate(4)
    pool.hold(table[:3])
    assert pool.count_own(table[:3]) == pool.count_own([]) == 0


# Repair and checks.


def test_recounting_frees_the_pages_that_are_in_no_table():
    pool, whole, branch = _branched()
    pool.recount([branch])
    assert pool.num_free == 5
    pool.check_invariants([branch])
    assert pool.allocate(2, after=branch[-1]) == [5, 6]
    assert whole[2:] == [2, 3], "precondition of this test: these are free again"


@pytest.mark.parametrize(
    "tables",
    [
        [[0]],
        [[0, 1], [0, 1]],
        [[0, 1], [0]],
        [[0, 1, 2]],
        [[1, 0]],
        [[0, 1, 0]],
        [[0, 1], [2, 1]],
    ],
    ids=["leak", "twin", "prefix", "free page", "order", "page twice", "two predecessors"],
)
def test_tables_that_are_not_those_that_are_held_break_an_invariant(tables):
    pool = PagePool(4)
    pool.check_invariants([pool.allocate(2)])
    with pytest.raises(InvariantBroken):
        pool.check_invariants(tables)
