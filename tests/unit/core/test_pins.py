"""Pins: a pinned sequence is not evicted until its pin expires; pins have limits."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import PinRefused, SessionBusy, SessionNotFound
from kvreg_service.core.events import Evicted, Finished, PinEnded
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.states.quota import Quota

SHORT, LONG = 70, 400
THEIRS = Identity(b"epoch", "theirs")
SMALL = {"num_pages": 12, "max_context_tokens": 512}
"""Twelve pages, of which a full context takes eight."""


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, number, length=SHORT, **options):
    """Serve a session with a checkpoint at ``length``; return the id of its kept sequence."""
    outcome = core.run([*_text(number, length), 7], boundary=length, max_tokens=1, **options)
    return outcome.admission.sequence_id


def _back(core, number, length=SHORT, **options):
    return core.run([*_text(number, length), 5, 6], boundary=length, max_tokens=1, **options)


def _pin(core, sequence_id, ttl_s=1000.0, **options):
    core.scheduler.custody.pin(sequence_id, ttl_s, core.now_s, **options)


def _pinned(core) -> list[int]:
    return sorted(one.sequence_id for one in core.kept() if one.is_pinned(core.now_s))


def _ids(core) -> list[int]:
    return sorted(one.sequence_id for one in core.kept())


# Protection.


def test_a_pinned_entry_outlasts_more_valuable_sessions(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    for number in range(2, 6):
        _keep(core, number, LONG)
    assert _back(core, 1).cached == SHORT


def test_a_pinned_sequence_on_a_lane_evicts_a_more_valuable_entry(make_core):
    core = make_core(entries=1)
    valuable = _keep(core, 1, LONG)
    _pin(core, _keep(core, 2))
    outcome = core.run(_text(3, SHORT))
    assert [(e.sequence_id, e.reason) for e in outcome.of(Evicted)] == [
        (valuable, EvictionReason.ENTRY_NEEDED)
    ]


@pytest.mark.parametrize("policy", ["cost", "none"])
def test_a_pinned_sequence_is_exchanged_although_exchange_is_off(make_core, policy):
    core = make_core(entries=1, exchange=False, policy=policy)
    first = _keep(core, 1, LONG)
    second = _keep(core, 2)
    _pin(core, second)
    _back(core, 1, LONG)
    assert _ids(core) == [first, second]


def test_policy_none_evicts_an_entry_for_a_pinned_sequence(make_core):
    core = make_core(entries=1, policy="none")
    _keep(core, 1, LONG)
    second = _keep(core, 2)
    _pin(core, second)
    _keep(core, 3)
    assert second in _ids(core)


def test_at_its_quota_a_pin_of_a_tenant_evicts_an_entry_of_the_same_tenant(make_core):
    core = make_core(entries=2, policy="none")
    core.scheduler.custody.set_quotas({"theirs": Quota(entries=1, pages=16)}, core.now_s)
    first, second = (_keep(core, number, identity=THEIRS) for number in (1, 2))
    _pin(core, second)
    _keep(core, 3)
    assert second in _ids(core)
    assert first not in _ids(core)


def test_an_unpinned_lane_is_displaced_before_a_pinned_one(make_core):
    core = make_core(lanes=2, entries=1)
    _pin(core, _keep(core, 1))
    valuable = core.run([*_text(2, LONG), 7], boundary=LONG).admission
    assert core.run(_text(3, 50)).admission.lane == valuable.lane


def test_page_pressure_evicts_unpinned_sequences_only(make_core):
    core = make_core(entries=2, **SMALL)
    pinned = _keep(core, 1)
    _pin(core, pinned)
    others = [_keep(core, 2, 250), _keep(core, 3, 250)]
    outcome = core.run(_text(9, 500), max_tokens=12)
    assert isinstance(outcome.terminal, Finished)
    assert pinned in _ids(core)
    assert not set(others) & set(_ids(core))


def test_a_pin_persists_while_its_sequence_moves_between_lane_and_entry(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    for number in (2, 1, 3, 1):
        _back(core, number)
        assert _pinned(core) == [first]


def test_a_borrowing_request_leaves_the_pin_on_the_kept_copy(make_core):
    core = make_core(entries=2)
    _pin(core, _keep(core, 1))
    core.run([*_text(1, SHORT), 4, 4, 4], retain=False)
    (pinned,) = (one for one in core.kept() if one.is_pinned(core.now_s))
    assert list(pinned.ledger.tokens) == [*_text(1, SHORT), 7]


def test_a_borrowing_request_is_a_cold_prefill_if_it_would_consume_a_pinned_sequence(make_core):
    core = make_core(entries=1)
    answer = core.run(_text(1, SHORT), max_tokens=4).answer
    _pin(core, 1)
    core.run(_text(2, SHORT))
    prompt = [*_text(1, SHORT), *answer[:3], 8, 8]
    outcome = core.run(prompt, retain=False)
    assert outcome.answer == make_core().run(prompt).answer
    assert _pinned(core) == [1]
    assert core.run([*_text(1, SHORT), *answer, 5]).cached == SHORT + 3


def test_an_administrator_can_drop_a_pinned_sequence(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    (event,) = core.scheduler.custody.drop(first)
    assert event.reason is EvictionReason.REQUESTED
    assert _ids(core) == []


# Expiry.


def test_a_pin_expires_exactly_at_its_ttl(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first, ttl_s=10.0)
    core.now_s += 9.999
    assert _pinned(core) == [first]
    core.now_s += 0.001
    assert _pinned(core) == []


def test_a_sequence_with_an_expired_pin_can_be_evicted(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first, ttl_s=100.0)
    core.now_s += 101.0
    _keep(core, 2, LONG)
    _keep(core, 3, LONG)
    assert first not in _ids(core)


def test_pinning_again_replaces_the_ttl(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first, ttl_s=1000.0)
    _pin(core, first, ttl_s=5.0)
    core.now_s += 5.0
    assert _pinned(core) == []


def test_an_unpinned_sequence_can_be_evicted(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    core.scheduler.custody.unpin(first)
    _keep(core, 2, LONG)
    _keep(core, 3, LONG)
    assert first not in _ids(core)


def test_a_pin_that_grows_beyond_the_limit_ends_with_an_event(make_core):
    core = make_core(entries=1, **SMALL)
    first = _keep(core, 1)
    _pin(core, first)
    outcome = core.run([*_text(1, SHORT), *_text(2, 200)], boundary=SHORT + 199)
    assert outcome.of(PinEnded) == [PinEnded(first)]
    assert _pinned(core) == []
    assert first in _ids(core), "the sequence is still kept"


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
    core.scheduler.custody.set_quotas({"theirs": Quota(entries=1, pages=4)}, core.now_s)
    _pin(core, _keep(core, 1, identity=THEIRS))
    core.run([*_text(1, SHORT), *_text(2, 350)], boundary=419, identity=THEIRS)
    assert _pinned(core) == []
    # Any tenant can still run a request of full context.
    assert isinstance(core.run(_text(9, 500), max_tokens=12).terminal, Finished)


def test_a_quota_that_leaves_no_entry_for_a_pin_ends_it(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    happened = core.scheduler.custody.set_quotas({"theirs": Quota(entries=1, pages=4)}, core.now_s)
    assert happened == [PinEnded(first)]


def test_quotas_that_leave_room_for_a_pin_do_not_end_it(make_core):
    core = make_core(entries=2)
    first = _keep(core, 1)
    _pin(core, first)
    assert core.scheduler.custody.set_quotas({"theirs": Quota(1, 4)}, core.now_s) == []
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


def test_a_pinned_sequence_can_be_pinned_again_at_the_limit(make_core):
    core = make_core(lanes=2, entries=1)
    first = _keep(core, 1)
    _pin(core, first)
    _pin(core, first, ttl_s=5000.0)
    core.now_s += 2000.0
    assert _pinned(core) == [first]


def test_an_expired_pin_makes_room_for_another(make_core):
    core = make_core(lanes=2, entries=1)
    first, second = _keep(core, 1), _keep(core, 2)
    _pin(core, first, ttl_s=5.0)
    core.now_s += 5.0
    _pin(core, second)
    assert _pinned(core) == [second]


def test_a_pin_counts_while_a_request_runs_on_its_sequence(make_core):
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


def test_in_drop_mode_a_pin_without_a_checkpoint_is_refused(make_core):
    core = make_core(entries=1, keep_current=False)
    first = core.run(_text(1, SHORT)).admission.sequence_id
    with pytest.raises(PinRefused):
        _pin(core, first)


@pytest.mark.parametrize(("length", "is_refused"), [(255, False), (256, True)])
def test_a_pin_that_leaves_too_few_pages_for_a_full_context_is_refused(
    make_core, length, is_refused
):
    core = make_core(entries=1, **SMALL)
    first = core.run(_text(1, length + 1), boundary=length, max_tokens=1).admission.sequence_id
    (kept,) = core.kept()
    assert len(kept.pages) == (5 if is_refused else 4), "precondition of this test"
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
    core.scheduler.custody.set_quotas({"theirs": Quota(entries=1, pages=3)}, core.now_s)
    first = _keep(core, 1)
    with pytest.raises(PinRefused):
        _pin(core, first)


def test_a_pin_on_entries_reserved_by_quotas_is_refused(make_core):
    core = make_core(lanes=2, entries=2)
    core.scheduler.custody.set_quotas({"theirs": Quota(entries=1, pages=4)}, core.now_s)
    first, second = _keep(core, 1), _keep(core, 2)
    _pin(core, first)
    with pytest.raises(PinRefused) as caught:
        _pin(core, second)
    assert caught.value.fields["limit"] == 1


def test_pins_of_other_tenants_do_not_limit_pins_within_a_quota(make_core):
    core = make_core(lanes=2, entries=2)
    core.scheduler.custody.set_quotas({"theirs": Quota(entries=1, pages=8)}, core.now_s)
    ours, theirs = _keep(core, 1), _keep(core, 2, identity=THEIRS)
    _pin(core, ours)
    _pin(core, theirs)
    assert _pinned(core) == [ours, theirs]


def test_pins_of_a_tenant_are_limited_by_the_entries_of_its_quota(make_core):
    core = make_core(lanes=3, entries=3)
    core.scheduler.custody.set_quotas({"theirs": Quota(entries=1, pages=8)}, core.now_s)
    first, second = (_keep(core, number, identity=THEIRS) for number in (1, 2))
    _pin(core, first)
    with pytest.raises(PinRefused):
        _pin(core, second)


def test_a_pin_is_refused_while_its_pages_are_promised_to_running_requests(make_core):
    core = make_core(lanes=2, entries=1, **SMALL)
    first = _keep(core, 1, 150)
    core.submit(_text(2, 100), max_tokens=412)
    fourth = core.submit(_text(3, 100), max_tokens=156)
    core.step()
    core.step()
    assert core.scheduler.num_running == 2, "precondition of this test"
    with pytest.raises(PinRefused):
        _pin(core, first)
    core.scheduler.cancel(fourth, core.now_s)
    _pin(core, first)
    assert _pinned(core) == [first]


def test_a_running_or_dropped_sequence_cannot_be_pinned_unpinned_or_dropped(make_core):
    core = make_core(entries=1)
    running = core.submit(_text(1, SHORT), max_tokens=50)
    core.step()
    sequence_id = core.log[0].admission.sequence_id
    for change in (
        core.scheduler.custody.unpin,
        core.scheduler.custody.drop,
        lambda i: _pin(core, i),
    ):
        with pytest.raises(SessionBusy):
            change(sequence_id)
    core.scheduler.cancel(running, core.now_s)
    core.scheduler.custody.drop(sequence_id)
    for change in (
        core.scheduler.custody.unpin,
        core.scheduler.custody.drop,
        lambda i: _pin(core, i),
    ):
        with pytest.raises(SessionNotFound):
            change(sequence_id)


def test_another_tenant_gets_not_found_for_kept_and_running_sequences(make_core):
    core = make_core(entries=1)
    first = _keep(core, 1)
    scheduler = core.scheduler
    changes = (
        lambda: scheduler.custody.unpin(first, tenant="theirs"),
        lambda: scheduler.custody.drop(first, tenant="theirs"),
        lambda: _pin(core, first, tenant="theirs"),
    )
    for change in changes:
        with pytest.raises(SessionNotFound):
            change()
    core.submit([*_text(1, SHORT), 5, 6], max_tokens=50)
    core.step()
    for change in changes:
        with pytest.raises(SessionNotFound):
            change()
