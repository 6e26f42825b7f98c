"""A small request may overtake a queue head that lacks pages only if it cannot delay the head."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from kvreg_service.core.events import Admitted, Finished
from kvreg_service.core.states.quota import Quota

POOL = {"num_pages": 12, "max_context_tokens": 512}
PAGE = 64


def _submit(core, number, pages, **options):
    """Submit a request whose ``max_tokens`` makes the scheduler promise ``pages`` pages."""
    prompt = [number] * 20
    return core.submit(prompt, max_tokens=pages * PAGE - len(prompt), **options)


def _steps(core, count):
    """Step ``count`` times; return the ids of the admitted requests."""
    return [
        event.request_id
        for _ in range(count)
        for event in core.step()[1]
        if isinstance(event, Admitted)
    ]


def _behind_a_large_head(make_core, running=(6,), head=8, **options):
    """Return a core with running requests and a queue head that waits for their pages."""
    core = make_core(lanes=len(running) + 2, **{**POOL, **options})
    ids = [_submit(core, 10 + index, pages) for index, pages in enumerate(running)]
    assert _steps(core, len(running)) == ids, "precondition of these tests"
    waiting = _submit(core, 90, head)
    assert _steps(core, 1) == [], "precondition of these tests"
    return core, ids, waiting


def test_a_small_request_overtakes_a_head_that_lacks_pages(make_core):
    core, _, _ = _behind_a_large_head(make_core)
    small = _submit(core, 50, 4)
    assert _steps(core, 2) == [small]


def test_a_request_that_could_delay_the_head_does_not_overtake_it(make_core):
    core, _, head = _behind_a_large_head(make_core)
    _submit(core, 50, 5)
    assert _steps(core, 3) == []
    core.scheduler.cancel(core.log[0].request_id, core.now_s)
    assert _steps(core, 1) == [head]


def test_the_overtaking_requests_together_do_not_delay_the_head(make_core):
    core, _, _ = _behind_a_large_head(make_core, running=(6,), head=8)
    small = [_submit(core, 50 + number, 2) for number in range(3)]
    assert _steps(core, 4) == small[:2]


def test_overtaking_requests_are_admitted_in_order_of_arrival(make_core):
    core, _, _ = _behind_a_large_head(make_core, running=(6, 1), head=8)
    large, first, second = (_submit(core, 50 + i, pages) for i, pages in enumerate((7, 1, 1)))
    assert _steps(core, 3) == [first, second]
    assert large not in {event.request_id for event in core.log if isinstance(event, Admitted)}


def test_without_an_idle_lane_no_request_overtakes(make_core):
    core = make_core(lanes=1, **POOL)
    running = _submit(core, 10, 6)
    core.step()
    head, _ = _submit(core, 90, 8), _submit(core, 50, 1)
    assert _steps(core, 2) == []
    core.scheduler.cancel(running, core.now_s)
    assert _steps(core, 1) == [head]


def test_no_request_overtakes_a_head_that_fits(make_core):
    core = make_core(lanes=3, **POOL)
    first, second = _submit(core, 10, 8), _submit(core, 50, 1)
    assert _steps(core, 2) == [first, second]


def test_an_overtaken_head_is_admitted_when_the_earlier_requests_have_ended(make_core):
    core, (running,), head = _behind_a_large_head(make_core)
    _submit(core, 50, 4)
    core.step()
    core.scheduler.cancel(running, core.now_s)
    assert _steps(core, 1) == [head]


@pytest.mark.parametrize("protection", ["quota", "pin"])
def test_no_request_overtakes_while_pages_are_protected(make_core, protection):
    core = make_core(lanes=4, entries=1, **POOL)
    core.run([5] * 50)
    if protection == "quota":
        core.scheduler.sessions.set_quotas({"theirs": Quota(entries=1, pages=2)}, core.now_s)
    else:
        core.scheduler.sessions.pin(core.sessions()[0].session_id, 5000.0, core.now_s)
    _submit(core, 10, 6)
    core.step()
    _submit(core, 90, 8)
    _submit(core, 50, 1)
    assert _steps(core, 3) == []


def test_small_requests_do_not_starve_a_large_one(make_core):
    core = make_core(lanes=3, queue_limit=1000, **POOL)
    rng = Random(5)
    first = _submit(core, 10, 7)
    core.step()
    head = _submit(core, 90, 8)
    for _ in range(500):
        if core.scheduler.count_queued() < 20:
            core.submit([rng.randrange(40)] * 20, max_tokens=rng.choice([1, 60, 200]))
        core.step()
    starts = [event.request_id for event in core.log if isinstance(event, Admitted)]
    assert head in starts
    assert starts.index(head) > 1, "precondition of this test: a request has overtaken"
    since = core.log.index(_end(core, first))
    later = [event.request_id for event in core.log[since:] if isinstance(event, Admitted)]
    assert later[0] == head


def _end(core, request_id):
    (event,) = [e for e in core.log if isinstance(e, Finished) and e.request_id == request_id]
    return event


# Compared with all orders in which running requests may end.


def _delays_head(running: list[int], head: int, small: int, pool: int) -> bool:
    """Return whether ``small`` delays the head in any order in which running requests may end."""
    for order in permutations(running):
        held = sum(running)
        for ended in order:
            held -= ended
            if held + head <= pool:
                break
        if held + small + head > pool:
            return True
    return False


def _draw(rng: Random) -> tuple[int, list[int], int, int]:
    """Return a pool, promises that fit in it, a head that does not fit, and a small request."""
    while True:
        pool, head, small = rng.randrange(8, 21), rng.randrange(1, 9), rng.randrange(1, 6)
        running = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 5))]
        if sum(running) <= pool < sum(running) + head:
            return pool, running, head, small


@pytest.mark.parametrize("seed", range(60))
def test_a_request_overtakes_only_if_it_cannot_delay_the_head_in_any_order_of_ends(make_core, seed):
    pool, running, head, small = _draw(Random(seed))
    core = make_core(lanes=len(running) + 2, num_pages=pool, max_context_tokens=512)
    for index, pages in enumerate(running):
        _submit(core, 10 + index, pages)
    _steps(core, len(running))
    _submit(core, 90, head)
    request_id = _submit(core, 50, small)
    may_pass = sum(running) + small <= pool and not _delays_head(running, head, small, pool)
    assert _steps(core, 1) == ([request_id] if may_pass else [])


def test_the_random_draws_cover_all_cases():
    kinds = set()
    for seed in range(60):
        pool, running, head, small = _draw(Random(seed))
        fits = sum(running) + small <= pool
        kinds.add((fits, fits and not _delays_head(running, head, small, pool)))
    assert kinds == {(False, False), (True, False), (True, True)}
