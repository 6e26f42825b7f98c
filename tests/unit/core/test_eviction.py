"""Which states are freed first, for slots and for pages, and which may not be freed at all."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Evicted
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.states.quota import Quota

THEIRS = Identity(b"epoch", "theirs")


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, number, length=300, **options):
    """Keep one session with one state, at ``length``; return the session."""
    options = {"max_tokens": 1, **options}
    session_id = core.run(_text(number, length), **options).admission.session_id
    session = core.scheduler.store.find_session(session_id)
    session.is_newcomer = False
    return session


def _victims(outcome) -> list[int]:
    return [event.tokens for event in outcome.of(Evicted)]


# Values.


def test_a_state_is_worth_the_prefill_beyond_its_parent_times_its_rate_of_returns(make_core):
    core = make_core(entries=1)
    core.run([*_text(1, 200), 7], boundary=200, max_tokens=100)
    boundary, frontier = core.states()
    store = core.scheduler.store
    for state, before in ((boundary, 0), (frontier, 200)):
        saved_s = store.cost.prefill_seconds(state.position, before)
        assert core.value(state) == pytest.approx(saved_s * store.rates.rate(state.visits))


def test_a_state_is_worth_more_once_the_state_before_it_is_gone(make_core):
    core = make_core(entries=1)
    core.run([*_text(1, 200), 7], boundary=200, max_tokens=100)
    boundary, frontier = core.states()
    before = core.value(frontier)
    core.scheduler.store.free(boundary, EvictionReason.SLOT_NEEDED)
    assert core.value(frontier) > 2 * before


def test_a_state_inherits_the_chance_of_the_freed_states_beyond_it(make_core):
    core = make_core(entries=1)
    core.run([*_text(1, 200), 7], boundary=200, max_tokens=100)
    boundary, frontier = core.states()
    before = core.value(boundary)
    core.scheduler.store.free(frontier, EvictionReason.SLOT_NEEDED)
    assert core.value(boundary) == pytest.approx(2 * before), "both would return here"


# For slots.


def test_the_least_valuable_state_gives_its_slot(make_core):
    core = make_core(entries=1)
    for number, length in enumerate((400, 100, 300, 200)):
        _keep(core, number, length)
    outcome = core.run(_text(9, 50), max_tokens=1)
    assert _victims(outcome) == [100]
    assert [event.reason for event in outcome.of(Evicted)] == [EvictionReason.SLOT_NEEDED]


def test_while_a_slot_is_free_nothing_is_freed(make_core):
    core = make_core(entries=1)
    for number in range(4):
        assert not core.run(_text(number, 200), max_tokens=1).of(Evicted)


def test_one_state_at_most_is_freed_for_the_start_of_a_request(make_core):
    core = make_core(entries=3)
    for number in range(12):
        core.run([*_text(number, 100), 7], boundary=100)
    plan = core.plan(core.request(_text(50, 400), boundary=390))
    assert [reason for _, reason in plan.freed] == [EvictionReason.SLOT_NEEDED]


def test_of_equal_states_the_oldest_is_freed_first(make_core):
    core = make_core(entries=1, policy="lru")
    for number in range(4):
        _keep(core, number, 200 + number)
    assert _victims(core.run(_text(9, 300), max_tokens=1)) == [200]


def test_the_only_state_of_a_resumed_session_is_copied_while_others_can_be_freed(make_core):
    core = make_core(entries=1)
    for number, length in enumerate((400, 100, 300, 200)):
        _keep(core, number, length)
    outcome = core.run([*_text(0, 400), 7, 7], max_tokens=1)
    assert (outcome.cached, _victims(outcome)) == (400, [100])
    assert outcome.steps[0].preparation.moves, "the state is copied"


def test_the_resumed_state_gives_its_own_slot_if_it_is_worth_least(make_core):
    core = make_core(entries=1)
    for number, length in enumerate((400, 100, 300, 200)):
        _keep(core, number, length)
    outcome = core.run([*_text(1, 100), 7, 7], max_tokens=1)
    assert (outcome.cached, _victims(outcome)) == (100, [100])
    assert outcome.steps[0].preparation.moves == ()
    assert outcome.answer == make_core().run([*_text(1, 100), 7, 7], max_tokens=1).answer


def test_a_conversation_that_goes_on_gives_up_its_own_passed_state_first(make_core):
    core = make_core(entries=1)
    for number in range(3):
        _keep(core, number, 200)
    core.run(_text(3, 150), max_tokens=1)
    assert core.scheduler.store.slots.num_free == 0, "precondition of this test"
    outcome = core.run([*_text(3, 150), *_text(8, 100)], boundary=240, max_tokens=1)
    assert outcome.cached == 150
    assert _victims(outcome)[0] == 150


# Newcomers: sessions whose first turn was answered last.


def _full_of_old_states(make_core, **options):
    """Return a core without a free slot, all of whose states are longer than any request below."""
    core = make_core(num_pages=128, **options)
    for number in range(core.layout.num_slots):
        _keep(core, number, 900 - number)
    assert core.scheduler.store.slots.num_free == 0, "precondition"
    return core


def _first_turn(core, number, length=200):
    return core.run([*_text(number, length), 7, 7], boundary=length, max_tokens=2)


def test_a_shorter_request_takes_no_slot_of_the_newcomer_that_was_answered_last(make_core):
    core = _full_of_old_states(make_core, entries=1)
    _first_turn(core, 20)
    outcome = core.run(_text(21, 100), boundary=90)
    assert 200 not in _victims(outcome)
    assert core.run([*_text(20, 200), 5, 5]).cached == 200


def test_a_longer_request_may_take_a_slot_of_the_newcomer(make_core):
    core = _full_of_old_states(make_core, entries=1)
    _first_turn(core, 20)
    assert 200 in _victims(core.run(_text(21, 250), boundary=240))


@pytest.mark.parametrize(("entries", "survives"), [(1, False), (2, True)])
def test_with_two_entries_the_last_two_newcomers_are_protected(make_core, entries, survives):
    core = _full_of_old_states(make_core, entries=entries)
    _first_turn(core, 20, 200)
    _first_turn(core, 21, 150)
    victims = _victims(core.run(_text(22, 100), boundary=90))
    assert (200 not in victims) is survives
    assert 150 not in victims


def test_without_entries_no_newcomer_is_protected(make_core):
    core = make_core()
    _first_turn(core, 20)
    outcome = core.run(_text(21, 100), boundary=90)
    assert sorted(_victims(outcome)) == [200, 203]


def _known_session(core):
    """Serve two turns of a session whose boundary is worth less than the old states."""
    core.run([*_text(20, 30), 7, 7], boundary=30, max_tokens=2)
    core.run([*_text(20, 30), 5, 5, 5], boundary=32, max_tokens=2)
    return core.scheduler.store.find_at(core.request([*_text(20, 30), 5, 5]).prompt, 32)


def test_a_shorter_request_that_begins_a_session_takes_no_slot_of_the_known_one_before_it(
    make_core,
):
    core = _full_of_old_states(make_core, entries=1)
    boundary = _known_session(core)
    for number in (21, 22):
        core.run(_text(number, 20), boundary=15)
        assert boundary in core.states()


def test_a_session_that_was_resumed_is_no_newcomer(make_core):
    core = make_core(entries=1)
    _first_turn(core, 20)
    (session,) = core.sessions()
    assert session.is_newcomer
    core.run([*_text(20, 200), 5, 5], boundary=201)
    assert not session.is_newcomer


def test_a_session_whose_states_were_freed_is_no_newcomer_when_it_returns(make_core):
    core = make_core(entries=1)
    session_id = _first_turn(core, 20).admission.session_id
    core.scheduler.sessions.drop(session_id)
    core.run([*_text(20, 200), 5, 5], boundary=201)
    (again,) = core.sessions()
    assert again.session_id != session_id
    assert not again.is_newcomer


# Running requests.


def test_the_boundary_of_a_running_request_is_freed_after_all_others(make_core):
    core = make_core(lanes=2, entries=1)
    core.submit([*_text(20, 30), 7], boundary=30, max_tokens=200)
    core.step()
    core.step()
    for number in range(8):
        core.submit([*_text(number, 300), 7], boundary=300, max_tokens=1)
        for _ in range(4):
            core.step()
    assert ("turn", 30) in core.kept()
    core.drain()


# For pages.

SMALL = {"num_pages": 16, "max_context_tokens": 1024}


def test_pages_are_taken_from_the_state_of_the_least_value_per_page_that_comes_free(make_core):
    core = make_core(lanes=4, **SMALL)
    for number, length in enumerate((320, 65, 190)):
        _keep(core, number, length)
    # 5, 2 and 3 pages: 65 tokens on two pages are worth least per page.
    outcome = core.run(_text(9, 64 * 6 + 1), max_tokens=1)
    assert _victims(outcome) == [65]
    assert [event.reason for event in outcome.of(Evicted)] == [EvictionReason.PAGES_NEEDED]


def test_a_state_without_pages_of_its_own_is_freed_after_those_that_free_some(make_core):
    core = make_core(lanes=3, entries=3, num_pages=8, max_context_tokens=512)
    core.run([*_text(1, 64), *_text(2, 100)], boundary=64, max_tokens=1)
    _keep(core, 3, 190)
    outcome = core.run(_text(9, 64 * 3), max_tokens=1)
    assert 64 not in _victims(outcome)


def test_states_that_share_all_their_pages_are_freed_as_a_last_resort(make_core):
    core = make_core(entries=2, num_pages=8, max_context_tokens=512)
    core.run([*_text(1, 120), 7], boundary=120, max_tokens=5)
    assert len({state.pages for state in core.states()}) == 1, "precondition of this test"
    outcome = core.run(_text(9, 505), max_tokens=7)
    assert sorted(_victims(outcome)) == [120, 125]
    assert len(outcome.answer) == 7


# What may not be freed.


@pytest.fixture
def core_with_two(make_core):
    """A core with a long session of the usual tenant and a short one of another."""
    core = make_core(lanes=2, entries=1)
    return core, _keep(core, 1, 400), _keep(core, 2, 100, identity=THEIRS)


def _may_free(core, session, tenant):
    (state,) = session.states
    return core.scheduler.eviction.may_free(state, tenant, core.now_s)


def test_without_pins_and_quotas_every_state_may_be_freed_for_any_tenant(core_with_two):
    core, *sessions = core_with_two
    assert all(_may_free(core, one, tenant) for one in sessions for tenant in ("tenant", "theirs"))


def test_a_pinned_session_is_freed_for_nobody_until_its_pin_ends(core_with_two):
    core, ours, _ = core_with_two
    core.scheduler.sessions.pin(ours.session_id, 5.0, core.now_s)
    assert not any(_may_free(core, ours, tenant) for tenant in ("tenant", "theirs"))
    core.now_s += 5.0
    assert all(_may_free(core, ours, tenant) for tenant in ("tenant", "theirs"))


def test_a_session_within_a_quota_is_freed_for_its_own_tenant_only(core_with_two):
    core, ours, theirs = core_with_two
    core.scheduler.sessions.set_quotas({"theirs": Quota(1, 9)}, core.now_s)
    assert [_may_free(core, theirs, tenant) for tenant in ("tenant", "theirs")] == [False, True]
    assert _may_free(core, ours, "theirs")


def test_a_lent_session_may_be_freed_for_any_tenant(core_with_two):
    core, _, theirs = core_with_two
    core.scheduler.sessions.set_quotas({"theirs": Quota(1, 9)}, core.now_s)
    theirs.is_lent = True
    assert _may_free(core, theirs, "tenant")


def test_a_pin_protects_what_a_session_needs_to_go_on_and_no_older_state(make_core):
    core = make_core(lanes=2, entries=2)
    prompt = [*_text(1, 100), 7]
    for length in (200, 300):
        answer = core.run(prompt, boundary=len(prompt) - 1).answer
        prompt = [*prompt, *answer, *_text(2, length - len(prompt)), 7]
    (session,) = core.sessions()
    core.scheduler.sessions.pin(session.session_id, 50.0, core.now_s)
    may_free = core.scheduler.eviction.may_free
    protected = [one for one in session.states if not may_free(one, "tenant", core.now_s)]
    assert protected == session.essentials
    assert len(session.states) == 4
