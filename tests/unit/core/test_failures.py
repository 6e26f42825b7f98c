"""A failure affects one request only; what was kept before it stays reusable."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import KvregError, RequestFailed
from kvreg_service.core.events import Evicted, Failed, Finished, ReuseFailed, TokenSampled
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.scheduling.admission import AdmissionPlanner
from kvreg_service.core.states import return_rates
from kvreg_service.core.states.policies import CostPolicy

SESSION = list(range(200))


def _with_session(make_core, **options):
    core = make_core(entries=1, **options)
    core.run([*SESSION, 1, 2], boundary=200)
    return core


def _session_cached(core) -> int:
    return core.run([*SESSION, 3, 4], boundary=200).cached


class _Broken(RuntimeError):
    pass


def _raise(*_args, **_options):
    raise _Broken


# Failures of the runner.


def test_a_failed_first_chunk_of_a_side_request_preserves_the_displaced_session(make_core):
    core = _with_session(make_core)
    core.runner.fails_moves = False
    core.step(fail=[core.submit([9] * 50)])
    assert _session_cached(core) == 200


@pytest.mark.parametrize("keep", [True, False])
def test_a_failing_side_request_does_not_affect_a_running_request(make_core, keep):
    core = _with_session(make_core, keep_current=keep, lanes=2)
    core.runner.fails_moves = False
    running = core.submit([8] * 60, max_tokens=30)
    core.step()
    side = core.submit([9] * 60)
    _, happened = core.step(fail=[side])
    assert [event.request_id for event in happened if isinstance(event, Failed)] == [side]
    outcome = core.drain()
    assert outcome.terminal.request_id == running
    expected = make_core().run([8] * 60, max_tokens=30).answer
    assert [event.token for event in core.log if isinstance(event, TokenSampled)][-30:] == expected


def test_after_a_failed_decode_the_session_is_reusable_from_its_boundary(make_core):
    core = make_core()
    request_id = core.submit([*SESSION, 1, 2], boundary=200, max_tokens=50)
    for _ in range(10):
        core.step()
    core.step(fail=[request_id])
    assert core.kept() == [("turn", 200)]
    assert _session_cached(core) == 200


def test_a_chunk_that_fails_during_its_capture_keeps_no_state(make_core):
    core = make_core()
    request_id = core.submit([*SESSION, 1, 2], boundary=200)
    core.runner.fails_moves = False
    core.step(fail=[request_id])
    assert core.kept() == []
    assert core.scheduler.store.slots.num_free == core.layout.num_slots
    assert core.scheduler.store.pages.num_free == core.num_pages
    assert _session_cached(core) == 0


def test_a_chunk_that_fails_before_the_boundary_preserves_the_old_one(make_core):
    core = make_core(chunk_tokens=50)
    core.run([*SESSION, 1, 2], boundary=200)
    request_id = core.submit([*SESSION, *[5] * 100], boundary=280)
    core.runner.fails_moves = False
    core.step(fail=[request_id])
    assert _session_cached(core) == 200


@pytest.mark.parametrize("keep", [True, False])
def test_a_failed_attach_is_a_cold_prefill_without_error(make_core, keep):
    core = _with_session(make_core, keep_current=keep)
    core.run([9] * 60)
    follow_up = [*SESSION, 3, 4]
    _, happened = core.step(fail=[core.submit(follow_up, boundary=200)])
    assert any(isinstance(event, ReuseFailed) for event in happened)
    outcome = core.drain()
    assert isinstance(outcome.terminal, Finished)
    assert (outcome.cached, outcome.answer) == (0, make_core().run(follow_up).answer)


def test_a_failed_attach_preserves_the_state_that_it_would_have_copied(make_core):
    core = _with_session(make_core)
    core.step(fail=[core.submit([*SESSION, 5, 5], boundary=200)])
    core.drain()
    assert _session_cached(core) == 200


def test_failed_moves_lose_no_kept_state(make_core):
    core = make_core(entries=4)
    texts = [list(range(first, first + 150)) for first in (1000, 2000, 3000)]
    for text in texts:
        core.run([*text, 1], boundary=150)
    before = core.kept()
    core.step(fail=[core.submit([*texts[0], 5, 6], boundary=151)])
    assert core.kept() == before
    core.drain()
    assert [core.run([*text, 7], max_tokens=1).cached for text in texts] == [150] * 3


def test_a_kvreg_error_is_reported_unchanged(make_core):
    core = make_core()
    core.runner.fails_moves = False
    error = KvregError("named")
    _, happened = core.step(fail=[core.submit([1] * 50)], error=error)
    (failed,) = [event for event in happened if isinstance(event, Failed)]
    assert failed.error is error


# Exceptions inside of the core.


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("slots", "take"),
        ("slots", "free"),
        ("pages", "hold"),
        ("pages", "allocate"),
        ("pages", "release"),
        ("rates", "count_admission"),
        ("rates", "resume"),
        ("rates", "free"),
        ("starter", "_resume"),
        ("starter", "_note_use"),
        ("starter", "_announce"),
    ],
)
def test_an_admission_that_raises_midway_is_a_cold_prefill_and_keeps_the_pools_consistent(
    make_core, monkeypatch, owner, name
):
    core = make_core(entries=1, keep_current=False)
    others = [list(range(first, first + 150)) for first in (1000, 2000)]
    core.run([*SESSION, 1, 2], boundary=200)
    for prompt in others:
        core.run([*prompt, 1], boundary=150)
    store = core.scheduler.store
    owners = {
        "slots": store.slots,
        "pages": store.pages,
        "rates": store.rates,
        "starter": core.scheduler._intake._starter,
    }
    follow_up = [*SESSION, 1, 2, 3, 4]
    assert core.plan(core.request(follow_up)).cached_tokens == 200, "precondition of this test"
    with monkeypatch.context() as patch:
        patch.setattr(owners[owner], name, _raise)
        core.submit(follow_up, boundary=202)
        _, happened = core.step()
    (failed,) = [event for event in happened if isinstance(event, ReuseFailed)]
    assert isinstance(failed.error.__cause__, _Broken)
    assert {type(event) for event in happened} <= {ReuseFailed, Evicted}
    expected = make_core().run(follow_up).answer
    cold = core.drain()
    assert (cold.cached, cold.answer) == (0, expected)
    for prompt in others:
        core.run([*prompt, 1, 2], boundary=150)
    assert core.run(follow_up, boundary=202).answer == expected


def test_a_state_that_a_failed_admission_has_freed_is_reported_once(make_core, monkeypatch):
    core = make_core(entries=0)
    core.run([*SESSION, 1, 2], boundary=200)
    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler._intake._starter, "_announce", _raise)
        core.submit([8] * 300)
        _, happened = core.step()
    freed = [(e.tokens, e.reason) for e in happened if isinstance(e, Evicted)]
    assert freed == [(200, EvictionReason.DISPLACED), (205, EvictionReason.DISPLACED)]
    assert not [event for event in core.drain().events if isinstance(event, Evicted)]


def test_an_exception_in_the_policy_fails_the_request_being_admitted(make_core, monkeypatch):
    core = _with_session(make_core)
    core.run([9] * 60, boundary=50)
    with monkeypatch.context() as patch:
        patch.setattr(CostPolicy, "value", _raise)
        core.submit([8] * 60)
        core.step()
        _, (failed,) = core.step()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RequestFailed)
    assert _session_cached(core) == 200


def test_an_exception_in_the_policy_fails_the_request_that_needs_pages(make_core, monkeypatch):
    core = make_core(lanes=2, num_pages=8, max_context_tokens=512)
    core.run([*SESSION, 1, 2], boundary=200)
    core.submit([8] * 500, max_tokens=1)
    with monkeypatch.context() as patch:
        patch.setattr(CostPolicy, "value", _raise)
        _, happened = core.step()
    assert isinstance(happened[-1], Failed)
    assert not core.scheduler.has_work
    assert _session_cached(core) == 200


def test_a_failed_admission_does_not_block_the_queue(make_core, monkeypatch):
    core = make_core()
    core.submit([1] * 50)
    second = core.submit([2] * 50)
    with monkeypatch.context() as patch:
        patch.setattr(AdmissionPlanner, "plan", _raise)
        core.step()
        core.step()
    assert core.drain().admitted.request_id == second


def test_an_answer_is_complete_although_its_end_could_not_be_kept(make_core, monkeypatch):
    core = make_core()
    core.submit([*SESSION, 1, 2], boundary=200, max_tokens=1)
    with monkeypatch.context() as patch:
        patch.setattr(core.scheduler, "_keep_frontier", _raise)
        outcome = core.drain()
    assert isinstance(outcome.terminal, Finished)
    assert outcome.events[-1] is outcome.terminal
    assert core.kept() == [("turn", 200)]
    assert _session_cached(core) == 200


def test_a_freed_state_that_is_forgotten_during_the_admission_is_no_failure(make_core, monkeypatch):
    monkeypatch.setattr(return_rates, "_MAX_FREED", 2)
    core = make_core()
    session_id = core.run([*SESSION, 1, 2], boundary=200).admission.session_id
    core.scheduler.sessions.drop(session_id)
    core.run([9] * 60, boundary=50)
    follow_up = [*SESSION, 3, 4]
    plan = core.plan(core.request(follow_up))
    assert (len(plan.freed), plan.missed.prefix.position) == (2, 200), "precondition of this test"
    outcome = core.run(follow_up)
    assert not outcome.of(ReuseFailed)
    assert outcome.answer == make_core().run(follow_up).answer
