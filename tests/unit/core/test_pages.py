"""The page pool: allocation, states, reference counts, sharing and exhaustion."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import InvariantBroken, OutOfPages
from kvreg_service.core.ids import pages_for
from kvreg_service.core.memory.pages import PageCopy, PagePool, PageState


def _snapshot(pool: PagePool) -> list[object]:
    pages = range(pool.num_pages)
    return [pool.num_free, [pool.state(p) for p in pages], [pool.references(p) for p in pages]]


@pytest.mark.parametrize(
    ("num_tokens", "num_pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)]
)
def test_a_page_holds_64_tokens(num_tokens, num_pages):
    assert pages_for(num_tokens) == num_pages


def test_the_state_of_a_page_goes_from_free_to_active_to_sealed_to_cached_to_free():
    pool = PagePool(1)
    seen = [pool.state(0)]
    (page,) = pool.allocate(1)
    seen.append(pool.state(page))
    pool.seal([page])
    seen.append(pool.state(page))
    pool.keep([page])
    seen.append(pool.state(page))
    pool.release([page], is_kept=True)
    seen.append(pool.state(page))
    assert seen == [
        PageState.FREE,
        PageState.ACTIVE,
        PageState.SEALED,
        PageState.CACHED,
        PageState.FREE,
    ]


def test_a_cached_page_becomes_active_again_with_its_sequence():
    pool = PagePool(1)
    pages = pool.allocate(1)
    pool.seal(pages)
    pool.keep(pages)
    pool.resume(pages)
    pool.unseal(pages)
    assert pool.state(pages[0]) is PageState.ACTIVE


def test_a_freed_page_is_not_sealed_when_allocated_again():
    pool = PagePool(1)
    pages = pool.allocate(1)
    pool.seal(pages)
    pool.release(pages, is_kept=False)
    assert pool.state(pool.allocate(1)[0]) is PageState.ACTIVE


def test_the_counts_of_all_states_add_up_to_the_pool():
    pool = PagePool(6)
    sealed, cached = pool.allocate(2), pool.allocate(1)
    pool.allocate(1)
    pool.seal(sealed)
    pool.keep(cached)
    assert pool.count() == {
        PageState.FREE: 2,
        PageState.ACTIVE: 1,
        PageState.SEALED: 2,
        PageState.CACHED: 1,
    }


def test_allocated_pages_are_contiguous():
    assert PagePool(8).allocate(5) == [0, 1, 2, 3, 4]


def test_the_pages_after_the_last_one_are_preferred():
    pool = PagePool(8)
    first = pool.allocate(2)
    other = pool.allocate(1)
    pool.release(first, is_kept=False)
    assert pool.allocate(2, after=other[-1]) == [3, 4]


def test_a_gap_that_fits_the_expected_length_is_preferred_to_a_smaller_one():
    pool = PagePool(10)
    pool.allocate(10)
    pool.release([1, 2, 5, 6, 7, 8], is_kept=False)
    assert pool.allocate(1, room=4) == [5]


def test_scattered_pages_are_used_when_no_contiguous_gap_fits():
    pool = PagePool(5)
    pool.allocate(5)
    pool.release([0, 2, 4], is_kept=False)
    assert pool.allocate(3, after=1, room=5) == [0, 2, 4]


def test_allocating_no_pages_succeeds():
    pool = PagePool(2)
    pool.allocate(2)
    assert pool.allocate(0) == []


@pytest.mark.parametrize(
    "take",
    [
        lambda pool, _: pool.allocate(1),
        lambda pool, table: pool.fork(table, 2),
        lambda pool, table: pool.unshare(table[-1]),
    ],
    ids=["allocate", "fork", "unshare"],
)
def test_running_out_of_pages_leaves_the_pool_unchanged(take):
    pool = PagePool(3)
    table = pool.allocate(3)
    pool.keep(table)
    pool.fork(table, 3)
    before = _snapshot(pool)
    with pytest.raises(OutOfPages):
        take(pool, table)
    assert _snapshot(pool) == before


def test_out_of_pages_reports_needed_and_free_pages():
    pool = PagePool(3)
    pool.allocate(2)
    with pytest.raises(OutOfPages) as caught:
        pool.allocate(5)
    assert caught.value.fields == {"needed": 5, "free": 1}


def test_a_fork_shares_the_pages_before_the_write_position_and_copies_the_rest():
    pool = PagePool(8)
    table = pool.allocate(4)
    pool.keep(table)
    fork, copies = pool.fork(table, 2)
    assert fork[:2] == table[:2]
    assert copies == [PageCopy(table[2], fork[2]), PageCopy(table[3], fork[3])]
    assert [pool.references(page) for page in table] == [2, 2, 1, 1]
    assert [pool.references(page) for page in fork] == [2, 2, 1, 1]


def test_a_fork_is_cached_and_its_copies_are_sealed_like_the_originals():
    pool = PagePool(8)
    table = pool.allocate(3)
    pool.seal(table[:2])
    pool.keep(table)
    fork, _ = pool.fork(table, 1)
    pool.resume(table)
    assert [pool.state(page) for page in fork[1:]] == [PageState.CACHED, PageState.CACHED]
    pool.resume(fork)
    assert [pool.state(page) for page in fork] == [
        PageState.SEALED,
        PageState.SEALED,
        PageState.ACTIVE,
    ]


def test_a_shared_page_is_freed_with_its_last_reference():
    pool = PagePool(4)
    table = pool.allocate(2)
    pool.keep(table)
    fork, _ = pool.fork(table, 2)
    assert pool.release(table, is_kept=True) == 0
    assert pool.release(fork, is_kept=True) == 2


def test_a_page_shared_with_a_running_sequence_is_active():
    pool = PagePool(4)
    table = pool.allocate(1)
    pool.keep(table)
    pool.fork(table, 1)
    pool.resume(table)
    assert pool.state(table[0]) is PageState.ACTIVE


def test_unsharing_copies_the_page_for_the_writer():
    pool = PagePool(4)
    table = pool.allocate(1)
    pool.seal(table)
    pool.keep(table)
    pool.fork(table, 1)
    pool.resume(table)
    copy = pool.unshare(table[0])
    assert copy == PageCopy(src=0, dst=1)
    assert [pool.references(0), pool.references(1)] == [1, 1]
    assert pool.state(copy.dst) is PageState.ACTIVE


def test_a_leaked_page_breaks_an_invariant():
    pool = PagePool(4)
    pool.allocate(2)
    with pytest.raises(InvariantBroken):
        pool.check_invariants([[0]], [])


def test_a_page_of_two_sequences_with_one_reference_breaks_an_invariant():
    pool = PagePool(4)
    pool.allocate(1)
    with pytest.raises(InvariantBroken):
        pool.check_invariants([[0], [0]], [])


def test_a_page_twice_in_one_table_breaks_an_invariant():
    with pytest.raises(InvariantBroken):
        PagePool(4).check_invariants([[0, 0]], [])


def test_recounting_frees_pages_that_are_in_no_table():
    pool = PagePool(4)
    table = pool.allocate(3)
    pool.seal(table)
    pool.recount([[0]], [[1]])
    assert [pool.state(page) for page in range(4)] == [
        PageState.SEALED,
        PageState.CACHED,
        PageState.FREE,
        PageState.FREE,
    ]
    pool.check_invariants([[0]], [[1]])
