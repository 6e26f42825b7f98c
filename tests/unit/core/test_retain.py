"""A request with ``retain=False`` is not kept and does not change any kept sequence."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import CheckpointCaptured

SESSION = list(range(200))
TURN = [*SESSION, 1, 2]
ONE_SHOT = [9] * 100


def _with_session(make_core, **options):
    core = make_core(**options)
    core.run(TURN, boundary=200)
    return core


def test_an_unretained_request_is_not_kept(make_core):
    core = make_core(entries=1)
    core.run(ONE_SHOT, boundary=90, retain=False)
    assert core.kept() == []
    assert core.run(ONE_SHOT, boundary=90, retain=False).cached == 0


def test_the_pages_of_an_unretained_request_are_freed(make_core):
    core = make_core()
    core.run(ONE_SHOT, boundary=90, retain=False)
    assert core.scheduler.holdings.pages.num_free == core.num_pages


def test_an_unretained_request_captures_no_checkpoint(make_core):
    outcome = make_core().run(ONE_SHOT, boundary=90, retain=False)
    assert not outcome.of(CheckpointCaptured)


@pytest.mark.parametrize("keep", [True, False])
def test_many_unretained_requests_preserve_the_kept_session(make_core, keep):
    core = _with_session(make_core, entries=1, keep_current=keep)
    for number in range(50):
        core.run([1000 + number] * 120, boundary=100, retain=False)
    assert core.run([*SESSION, 5, 6], boundary=200).cached == 200


def test_an_unretained_request_reuses_a_kept_prefix(make_core):
    core = _with_session(make_core)
    assert core.run([*SESSION, 7, 7, 7], retain=False).cached == 200


@pytest.mark.parametrize("is_in_an_entry", [True, False])
def test_with_an_entry_a_borrowed_sequence_keeps_its_frontier(make_core, is_in_an_entry):
    core = make_core(entries=2)
    answer = core.run(TURN, boundary=200).answer
    if is_in_an_entry:
        core.run(ONE_SHOT)
    assert core.run([*TURN, *answer[:-1], 7, 7], retain=False).cached == len(TURN) + 3
    assert core.run([*TURN, *answer[:-1], 8, 8]).cached == len(TURN) + 3


def test_without_an_entry_a_borrowed_sequence_keeps_its_checkpoint(make_core):
    core = _with_session(make_core)
    core.run([*SESSION, 7, 7, 7], boundary=202, retain=False)
    assert core.run([*SESSION, 5, 6], boundary=200).cached == 200


def test_a_borrowed_sequence_contains_no_token_of_the_unretained_request(make_core):
    core = _with_session(make_core)
    answer = core.run([*SESSION, 7, 7, 7], retain=False).answer
    (kept,) = core.kept()
    assert list(kept.ledger.tokens) == SESSION
    assert core.run([*SESSION, 7, 7, 7, *answer, 5]).cached == 200


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_cancelling_an_unretained_request_returns_the_borrowed_sequence(make_core, num_steps):
    core = _with_session(make_core, chunk_tokens=20)
    request_id = core.submit([*SESSION, *[7] * 50], retain=False, max_tokens=50)
    for _ in range(num_steps):
        core.step()
    core.scheduler.cancel(request_id, core.now_s)
    assert core.run([*SESSION, 5, 6], boundary=200).cached == 200


def test_an_unretained_request_does_not_change_the_number_of_entries(make_core):
    core = _with_session(make_core, entries=3)
    core.run(ONE_SHOT, retain=False)
    before = core.scheduler.holdings.registry.num_kept
    core.run(ONE_SHOT, retain=False)
    assert core.scheduler.holdings.registry.num_kept == before == 1


def test_a_borrowed_sequence_is_kept_when_its_copy_was_dropped(make_core):
    core = _with_session(make_core, entries=1)
    core.submit([*SESSION, 7, 7, 7], retain=False, max_tokens=10)
    core.step()
    kept = core.scheduler.holdings.registry.get(0)
    core.scheduler.custody.drop(kept.sequence_id)
    core.drain()
    assert core.run([*SESSION, 5, 6], boundary=200).cached == 200
