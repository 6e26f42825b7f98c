"""Pins: a pinned session is not freed until its pin ends; pins have limits."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import PinRefused
from kvreg_service.core.events import Evicted, Finished, PinEnded
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.states.policies import POLICIES
from kvreg_service.core.states.quota import Quota

SHORT, LONG = 70, 400
THEIRS = Identity(b"epoch", "theirs")
SMALL = {"num_pages": 12, "max_context_tokens": 512}
"""Twelve pages, of which a full context takes eight."""
ONE_OF_EACH = Quota(entries=1, pages=4, anchors=1)


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, number, length=SHORT, **options):
    """Serve a session with a boundary at ``length``; return its id."""
    outcome = core.run([*_text(number, length), 7], boundary=length, max_tokens=1, **options)
    return outcome.admission.session_id


def _back(core, number, length=SHORT, **options):
    return core.run([*_text(number, length), 5, 6], boundary=length, max_tokens=1, **options)


def _pin(core, session_id, ttl_s=1000.0):
    core.scheduler.sessions.pin(session_id, ttl_s, core.now_s)


def _set_quotas(core, **quotas):
    return core.scheduler.sessions.set_quotas(quotas, core.now_s)


def _pinned(core) -> list[int]:
    return [one.session_id for one in core.sessions() if one.is_pinned(core.now_s)]


def _ids(core) -> list[int]:
    return [one.session_id for one in core.sessions()]


# Protection.


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "none"])
def test_a_pinned_session_outlasts_more_valuable_ones(make_core, policy):
    core = make_core(entries=1, policy=policy)
    _pin(core, _keep(core, 1))
    for number in range(2, 9):
        _keep(core, number, LONG, priority=9)
    assert _back(core, 1).cached == SHORT


def test_with_policy_none_a_pinned_session_outlasts_newer_ones(make_core):
    core = make_core(entries=1, policy="none")
    _pin(core, _keep(core, 1))
    for number in range(2, 6):
        _keep(core, number, LONG)
    assert _back(core, 1).cached == SHORT


def test_with_policy_none_the_pinned_session_on_a_lane_is_kept_when_it_is_displaced(make_core):
    core = make_core(entries=1, policy="none")
    _keep(core, 1, LONG)
    second = _keep(core, 2)
    _pin(core, second)
    _keep(core, 3)
    assert _back(core, 2).cached == SHORT


@pytest.mark.parametrize("keep", [True, False])
def test_a_pinned_session_keeps_its_boundary_and_in_keep_mode_its_frontier(make_core, keep):
    core = make_core(entries=1, keep_current=keep)
    _pin(core, _keep(core, 1))
    for number in range(2, 6):
        _keep(core, number, LONG)
    (session,) = (one for one in core.sessions() if one.is_pinned(core.now_s))
    assert [one.position for one in session.states] == ([70, 71] if keep else [70])


def test_page_pressure_frees_unpinned_sessions_only(make_core):
    core = make_core(entries=2, **SMALL)
    pinned = _keep(core, 1)
    _pin(core, pinned)
    for number in (2, 3):
        _keep(core, number, 250)
    outcome = core.run(_text(9, 500), max_tokens=12)
    assert isinstance(outcome.terminal, Finished)
    assert _ids(core)[0] == pinned
    assert {event.session_id for event in outcome.of(Evicted)} >= {2, 3}


def test_a_pin_stays_while_its_session_is_displaced_and_resumed(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    for number in (2, 1, 3, 1):
        _back(core, number)
        assert _pinned(core) == [first]


def test_a_request_that_is_not_retained_leaves_the_pinned_session_as_it_was(make_core):
    core = make_core(entries=1)
    answer = core.run(_text(1, SHORT), max_tokens=4).answer
    (session,) = core.sessions()
    _pin(core, session.session_id)
    core.run(_text(2, SHORT))
    prompt = [*_text(1, SHORT), *answer[:3], 8, 8]
    outcome = core.run(prompt, retain=False)
    assert (outcome.cached, outcome.answer) == (73, make_core().run(prompt).answer)
    assert _pinned(core) == [session.session_id]
    assert core.run([*_text(1, SHORT), *answer, 5]).cached == SHORT + 3


def test_an_administrator_can_drop_a_pinned_session(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    happened = core.scheduler.sessions.drop(first)
    assert {event.reason for event in happened} == {EvictionReason.REQUESTED}
    assert _ids(core) == []


# The end of a pin.


def test_a_pin_ends_exactly_at_its_ttl(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first, ttl_s=10.0)
    core.now_s += 9.999
    assert _pinned(core) == [first]
    core.now_s += 0.001
    assert _pinned(core) == []


def test_a_session_whose_pin_has_ended_can_be_freed(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first, ttl_s=100.0)
    core.now_s += 101.0
    for number in range(2, 6):
        _keep(core, number, LONG)
    assert first not in _ids(core)


def test_pinning_again_replaces_the_ttl(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first, ttl_s=1000.0)
    _pin(core, first, ttl_s=5.0)
    core.now_s += 5.0
    assert _pinned(core) == []


def test_an_unpinned_session_can_be_freed(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    core.scheduler.sessions.unpin(first)
    for number in range(2, 6):
        _keep(core, number, LONG)
    assert first not in _ids(core)


def test_a_pin_that_grows_beyond_the_limit_ends_with_an_event(make_core):
    core = make_core(entries=1, **SMALL)
    first = _keep(core, 1)
    _pin(core, first)
    outcome = core.run([*_text(1, SHORT), *_text(2, 200)], boundary=SHORT + 199)
    assert outcome.of(PinEnded) == [PinEnded(first)]
    assert _pinned(core) == []
    assert first in _ids(core), "the session is still kept"


def test_a_pin_that_grows_beyond_the_limit_ends_no_other_pin(make_core):
    core = make_core(lanes=2, entries=2, **SMALL)
    small, growing = _keep(core, 1, 50), _keep(core, 2, 50)
    _pin(core, small)
    _pin(core, growing)
    outcome = core.run([*_text(2, 50), *_text(3, 300)], boundary=349)
    assert outcome.of(PinEnded) == [PinEnded(growing)]
    assert _pinned(core) == [small]


def test_a_pin_that_outgrows_its_tenants_quota_ends(make_core):
    core = make_core(entries=2, **SMALL)
    _set_quotas(core, theirs=Quota(entries=1, pages=4))
    _pin(core, _keep(core, 1, identity=THEIRS))
    core.run([*_text(1, SHORT), *_text(2, 350)], boundary=419, identity=THEIRS)
    assert _pinned(core) == []
    # Any tenant can still run a request of full context.
    assert isinstance(core.run(_text(9, 500), max_tokens=12).terminal, Finished)


def test_a_quota_that_leaves_no_entry_for_a_pin_ends_it(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    assert _set_quotas(core, theirs=Quota(entries=1, pages=4)) == [PinEnded(first)]


def test_quotas_that_leave_room_for_a_pin_do_not_end_it(make_core):
    core = make_core(entries=2)
    first = _keep(core, 1)
    _pin(core, first)
    assert _set_quotas(core, theirs=Quota(1, 4)) == []
    assert _pinned(core) == [first]


# Refusals.


def test_pins_are_limited_by_the_number_of_entries(make_core):
    core = make_core(lanes=2, entries=1)
    first, second = _keep(core, 1), _keep(core, 2)
    _pin(core, first)
    with pytest.raises(PinRefused) as caught:
        _pin(core, second)
    assert caught.value.fields["limit"] == 1
    assert _pinned(core) == [first]


def test_a_pinned_session_can_be_pinned_again_at_the_limit(make_core):
    core = make_core(lanes=2, entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    _pin(core, first, ttl_s=5000.0)
    core.now_s += 2000.0
    assert _pinned(core) == [first]


def test_a_pin_that_has_ended_makes_room_for_another(make_core):
    core = make_core(lanes=2, entries=1)
    first, second = _keep(core, 1), _keep(core, 2)
    _pin(core, first, ttl_s=5.0)
    core.now_s += 5.0
    _pin(core, second)
    assert _pinned(core) == [second]


def test_a_pin_counts_while_a_request_runs_on_its_session(make_core):
    core = make_core(lanes=2, entries=1)
    first, second = _keep(core, 1), _keep(core, 2)
    _pin(core, first)
    core.submit([*_text(1, SHORT), 5, 6], max_tokens=50)
    core.step()
    with pytest.raises(PinRefused):
        _pin(core, second)


def test_without_entries_a_pin_is_refused(make_core):
    core = make_core(entries=0)
    first = _keep(core, 1)
    with pytest.raises(PinRefused):
        _pin(core, first)


@pytest.mark.parametrize(("length", "is_refused"), [(255, False), (256, True)])
def test_a_pin_that_leaves_too_few_pages_for_a_full_context_is_refused(
    make_core, length, is_refused
):
    core = make_core(entries=1, **SMALL)
    first = _keep(core, 1, length)
    num_pages = len(core.at(length + 1).pages)
    assert num_pages == (5 if is_refused else 4), "precondition of this test"
    if not is_refused:
        _pin(core, first)
        return
    with pytest.raises(PinRefused) as caught:
        _pin(core, first)
    assert caught.value.fields["pages"] == 5
    assert _pinned(core) == []


def test_the_pages_of_all_pins_are_added_up(make_core):
    core = make_core(lanes=2, entries=2, **SMALL)
    first, second = _keep(core, 1, 150), _keep(core, 2, 150)
    _pin(core, first)
    with pytest.raises(PinRefused):
        _pin(core, second)


def test_a_pin_on_pages_reserved_by_quotas_is_refused(make_core):
    core = make_core(entries=2, **SMALL)
    _set_quotas(core, theirs=Quota(entries=1, pages=3))
    first = _keep(core, 1)
    with pytest.raises(PinRefused):
        _pin(core, first)


def test_a_pin_on_entries_reserved_by_quotas_is_refused(make_core):
    core = make_core(lanes=2, entries=2)
    _set_quotas(core, theirs=Quota(entries=1, pages=4))
    first, second = _keep(core, 1), _keep(core, 2)
    _pin(core, first)
    with pytest.raises(PinRefused) as caught:
        _pin(core, second)
    assert caught.value.fields["limit"] == 1


def test_pins_of_other_tenants_do_not_limit_pins_within_a_quota(make_core):
    core = make_core(lanes=2, entries=2)
    _set_quotas(core, theirs=Quota(entries=1, pages=8))
    ours, theirs = _keep(core, 1), _keep(core, 2, identity=THEIRS)
    _pin(core, ours)
    _pin(core, theirs)
    assert _pinned(core) == [ours, theirs]


def test_pins_of_a_tenant_are_limited_by_the_entries_of_its_quota(make_core):
    core = make_core(lanes=3, entries=3)
    _set_quotas(core, theirs=Quota(entries=1, pages=8))
    first, second = (_keep(core, number, identity=THEIRS) for number in (1, 2))
    _pin(core, first)
    with pytest.raises(PinRefused):
        _pin(core, second)


def test_a_pin_is_refused_while_its_pages_are_promised_to_running_requests(make_core):
    core = make_core(lanes=2, entries=1, **SMALL)
    first = _keep(core, 1, 150)
    core.submit(_text(2, 100), max_tokens=412)
    last = core.submit(_text(3, 100), max_tokens=156)
    core.step()
    core.step()
    assert core.scheduler.num_running == 2, "precondition of this test"
    with pytest.raises(PinRefused):
        _pin(core, first)
    core.scheduler.cancel(last, core.now_s)
    _pin(core, first)
    assert _pinned(core) == [first]


# Shared heads: their pins count against anchors.


def _begin(core, number, **options):
    """Begin a conversation whose head is kept; return the session of the head."""
    options = {"boundary": SHORT, **options}
    core.run([*_text(number, SHORT), 1], heads=(64,), marks_heads=True, max_tokens=1, **options)
    return [one for one in core.sessions() if one.is_shared][-1]


def test_a_pinned_head_needs_no_entry(make_core):
    core = make_core(entries=0, anchors=1)
    head = _begin(core, 1, boundary=None)
    _pin(core, head.session_id)
    assert _pinned(core) == [head.session_id]


def test_a_pinned_head_and_a_pinned_session_do_not_limit_each_other(make_core):
    core = make_core(entries=1, anchors=1)
    head = _begin(core, 1)
    (session,) = (one for one in core.sessions() if not one.is_shared)
    for one in (head, session):
        _pin(core, one.session_id)
    assert len(_pinned(core)) == 2


def test_pinned_heads_are_limited_by_the_number_of_anchors(make_core):
    core = make_core(entries=2, anchors=1)
    first, second = (_begin(core, number) for number in (1, 2))
    _pin(core, first.session_id)
    with pytest.raises(PinRefused, match="1 anchors"):
        _pin(core, second.session_id)


def test_a_pinned_head_is_freed_neither_for_other_heads_nor_for_pages(make_core):
    core = make_core(entries=1, anchors=1, **SMALL)
    head = _begin(core, 1)
    _pin(core, head.session_id)
    for number in range(2, 8):
        _begin(core, number)
    assert isinstance(core.run([8] * 500, max_tokens=12).terminal, Finished)
    assert core.run([*_text(1, 64), 9]).cached == 64


def test_a_pin_is_refused_where_quotas_reserve_the_anchors(make_core):
    core = make_core(entries=2, anchors=2)
    _set_quotas(core, theirs=ONE_OF_EACH)
    first, second = (_begin(core, number) for number in (1, 2))
    _pin(core, first.session_id)
    with pytest.raises(PinRefused, match="1 anchors"):
        _pin(core, second.session_id)


def test_pinned_heads_above_a_reduced_quota_lose_their_pins_and_are_freed(make_core):
    core = make_core(entries=2, anchors=1)
    _set_quotas(core, theirs=ONE_OF_EACH)
    head = _begin(core, 1, identity=THEIRS)
    _pin(core, head.session_id)
    happened = _set_quotas(core, theirs=Quota(entries=1, pages=4))
    assert happened[0] == PinEnded(head.session_id)
    assert [(event.tokens, event.reason) for event in happened[1:]] == [(64, EvictionReason.QUOTA)]
