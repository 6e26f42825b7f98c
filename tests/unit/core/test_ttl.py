"""A session with a time to live is freed exactly that long after its last use."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Cancelled, Evicted
from kvreg_service.core.labels import EvictionReason

TURN = [*range(150), 7]


def _keep(core, **options):
    return core.run(TURN, boundary=150, max_tokens=1, **options).admission.session_id


def _pass(core, seconds):
    """Advance the clock of an idle core; return the evictions."""
    core.now_s += seconds
    _, happened = core.step()
    return [event for event in happened if isinstance(event, Evicted)]


def _back(core, **options):
    return core.run([*TURN[:150], 5, 6], boundary=150, max_tokens=1, **options)


def test_all_states_of_a_session_expire_exactly_at_its_ttl(make_core):
    core = make_core(entries=1)
    ended_s, session_id = core.now_s, _keep(core, ttl_s=30.0)
    core.now_s = ended_s
    assert _pass(core, 29.999) == []
    expired = _pass(core, 0.001)
    assert [(event.tokens, event.reason) for event in expired] == [
        (150, EvictionReason.EXPIRED),
        (151, EvictionReason.EXPIRED),
    ]
    assert {event.session_id for event in expired} == {session_id}
    assert core.scheduler.store.pages.num_free == core.num_pages
    assert core.scheduler.next_expiry_s() is None


def test_without_a_ttl_nothing_expires(make_core):
    core = make_core(entries=1)
    _keep(core)
    assert core.scheduler.next_expiry_s() is None
    assert _pass(core, 1e9) == []


@pytest.mark.parametrize("keep", [True, False])
def test_a_displaced_session_expires(make_core, keep):
    core = make_core(entries=1, keep_current=keep)
    session_id = _keep(core, ttl_s=30.0)
    core.run([9] * 100)
    assert {event.session_id for event in _pass(core, 40.0)} == {session_id}


def test_a_request_that_arrives_at_the_expiry_misses(make_core):
    core = make_core(entries=1)
    _keep(core, ttl_s=30.0)
    core.now_s += 30.0
    assert _back(core).cached == 0


def test_each_use_restarts_the_ttl(make_core):
    core = make_core(entries=1)
    _keep(core, ttl_s=30.0)
    for _ in range(3):
        core.now_s += 20.0
        assert _back(core, ttl_s=30.0).cached == 150


def test_the_last_request_replaces_or_removes_the_ttl(make_core):
    core = make_core(entries=1)
    _keep(core, ttl_s=30.0)
    _back(core)
    assert core.scheduler.next_expiry_s() is None
    assert _pass(core, 1e6) == []


def test_a_session_does_not_expire_while_a_request_runs_on_it(make_core):
    core = make_core(entries=0)
    _keep(core, ttl_s=30.0)
    request_id = core.submit([*TURN[:150], 5, 6], boundary=150, max_tokens=100, ttl_s=30.0)
    core.step()
    assert core.scheduler.next_expiry_s() is None
    assert _pass(core, 1000.0) == []
    *_, cancelled = core.scheduler.cancel(request_id, core.now_s)
    assert cancelled == Cancelled(request_id, 2)
    assert core.scheduler.next_expiry_s() == core.now_s + 30.0


def test_a_request_that_is_not_retained_neither_sets_nor_removes_a_ttl(make_core):
    core = make_core(entries=1)
    _keep(core, ttl_s=50.0)
    expires_s = core.scheduler.next_expiry_s()
    core.run([*TURN[:150], 4, 4], retain=False, ttl_s=1.0)
    core.run([*TURN[:150], 4, 4], retain=False)
    assert core.scheduler.next_expiry_s() == expires_s


def test_a_pin_postpones_the_expiry(make_core):
    core = make_core(entries=1)
    session_id = _keep(core, ttl_s=10.0)
    pinned_s = core.now_s
    core.scheduler.sessions.pin(session_id, 50.0, core.now_s)
    assert core.scheduler.next_expiry_s() == pinned_s + 50.0
    assert _pass(core, 49.0) == []
    assert {event.reason for event in _pass(core, 1.0)} == {EvictionReason.EXPIRED}


def test_a_pin_that_ends_before_the_ttl_does_not_change_the_expiry(make_core):
    core = make_core(entries=1)
    session_id = _keep(core, ttl_s=50.0)
    expires_s = core.scheduler.next_expiry_s()
    core.scheduler.sessions.pin(session_id, 10.0, core.now_s)
    assert core.scheduler.next_expiry_s() == expires_s
    assert _pass(core, 20.0) == []


def test_the_next_expiry_is_the_earliest_of_all(make_core):
    core = make_core(lanes=3, entries=1)
    core.run([1] * 80, ttl_s=90.0)
    core.run([2] * 80, ttl_s=20.0)
    core.run([3] * 80)
    expires_s = {one.expires_s for one in core.sessions()} - {None}
    assert core.scheduler.next_expiry_s() == min(expires_s)


def test_all_expired_sessions_are_freed_in_one_step(make_core):
    core = make_core(lanes=2, entries=1)
    ids = [core.run([n] * 80, ttl_s=10.0).admission.session_id for n in (1, 2, 3)]
    assert [event.session_id for event in _pass(core, 60.0)] == ids
    assert core.kept() == []


def test_a_shared_head_outlives_the_expired_conversation_that_captured_it(make_core):
    core = make_core(anchors=1)
    core.run(TURN, boundary=150, heads=(128,), ttl_s=10.0)
    _pass(core, 60.0)
    assert core.kept() == [("head", 128)]
